"""Claim: a key gets its quota and no more, is told the true wait, and is never shut out for good."""

import pytest
import structlog

from app.auth.quotas import INDEX_BURST, QUARANTINE_SHARE, Allowance, Quota, QuotaPolicy
from app.http.errors import QuotaExceededError


class Time:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def allowance(quota: Quota, time: Time, *, index_keys_max: int = 8000) -> Allowance:
    made = QuotaPolicy(quota, index_keys_max=index_keys_max, window_s=100, clock=time).allowance(quota, "web")
    assert made is not None
    return made


def wait(allowance: Allowance, *, events: int = 1, size_bytes: int = 1) -> tuple[str, float] | None:
    """Which limit refuses a request, and for how long; None if it passed and was charged."""
    try:
        allowance.take(events=events, size_bytes=size_bytes)
    except QuotaExceededError as err:
        return err.limit, round(err.wait_s, 6)
    return None


def test_quota_without_limits_needs_no_allowance(time: Time) -> None:
    assert QuotaPolicy(Quota(), 1, 1, time).allowance(Quota(), "web") is None


@pytest.mark.parametrize(
    ("quota", "events", "size_bytes", "limit"),
    [
        (Quota(requests=2, burst_s=5), 3, 7, "requests"),
        (Quota(events=6, burst_s=5), 3, 7, "events"),
        (Quota(bytes=14, burst_s=5), 3, 7, "bytes"),
    ],
)
def test_burst_passes_then_the_rate(
    quota: Quota, events: int, size_bytes: int, limit: str, time: Time
) -> None:
    key = allowance(quota, time)
    passed = 0
    while (refusal := wait(key, events=events, size_bytes=size_bytes)) is None:
        passed += 1
    assert passed == 10
    assert refusal == (limit, 0.5)
    for _ in range(20):
        time.now += 0.5
        assert wait(key, events=events, size_bytes=size_bytes) is None
        assert wait(key, events=events, size_bytes=size_bytes) is not None
    time.now += 10_000
    passed = 0
    while wait(key, events=events, size_bytes=size_bytes) is None:
        passed += 1
    assert passed == 10


def test_refused_request_is_charged_nothing(time: Time) -> None:
    key = allowance(Quota(requests=1, events=10, burst_s=1), time)
    assert wait(key, events=10) is None
    for _ in range(100):
        assert wait(key, events=5) == ("requests", 1)
    time.now += 1
    assert wait(key, events=10) is None


def test_longest_wait_is_told(time: Time) -> None:
    key = allowance(Quota(requests=1, events=2, bytes=100, burst_s=1), time)
    assert wait(key, events=2, size_bytes=100) is None
    assert wait(key, events=2, size_bytes=1) == ("requests", 1)
    time.now += 0.5
    assert wait(key, events=2, size_bytes=100) in (
        ("requests", 0.5),
        ("events", 0.5),
        ("bytes", 0.5),
    )


def test_request_larger_than_the_burst_passes_when_full_and_is_paid_off(time: Time) -> None:
    key = allowance(Quota(events=10, burst_s=1), time)
    assert wait(key, events=100) is None
    assert wait(key, events=100) == ("events", 10)
    time.now += 9
    assert wait(key, events=1) == ("events", 0.1)
    time.now += 1
    assert wait(key, events=100) is None


def test_looking_charges_nothing(time: Time) -> None:
    key = allowance(Quota(requests=1, burst_s=1), time)
    for _ in range(5):
        key.check(events=1, size_bytes=1)
    assert wait(key) is None
    with pytest.raises(QuotaExceededError):
        key.check(events=1, size_bytes=1)


def test_only_accepted_events_use_up_the_share_of_the_index(time: Time) -> None:
    key = allowance(Quota(index_share=0.1), time)  # 800 ids a window of 100 s, 100 of them at once
    for _ in range(50):
        assert wait(key, events=100) is None  # all duplicates
    key.grow(100)
    assert wait(key, events=7) == ("index", 1)
    time.now += 1
    assert wait(key, events=7) is None


def test_no_window_sees_more_new_events_than_the_share(time: Time) -> None:
    key = allowance(Quota(index_share=0.1), time)
    accepted = 0
    for _ in range(1000):
        while wait(key) is None:
            key.grow(1)
            accepted += 1
        time.now += 0.1
    assert accepted == pytest.approx(800, abs=2)
    assert INDEX_BURST == 1 / 8


def test_refusals_are_counted_by_limit(time: Time) -> None:
    policy = QuotaPolicy(Quota(requests=1, burst_s=1), 1, 1, time)
    key = policy.allowance(policy.default, "web")
    assert key is not None
    assert [wait(key) is None for _ in range(3)] == [True, False, False]
    assert policy.refusals == {"requests": 2}


def test_what_is_stored_beyond_what_was_sent_is_a_debt(time: Time) -> None:
    key = allowance(Quota(bytes=10, burst_s=10), time)
    assert wait(key, size_bytes=5) is None
    key.owe(295)
    assert wait(key, size_bytes=0) == ("bytes", 20)
    key.owe(-50)  # less than was sent gives nothing back
    assert wait(key, size_bytes=0) == ("bytes", 20)
    time.now += 20
    assert wait(key, size_bytes=0) is None


def test_log_says_once_a_minute_that_a_quota_bites(time: Time) -> None:
    key = allowance(Quota(requests=0.001, events=1, burst_s=1), time)
    with structlog.testing.capture_logs() as logged:
        for _ in range(51):
            wait(key)
        time.now += 59
        wait(key)
        time.now += 1
        wait(key)
    assert [(line["source"], line["limit"], line["refused"]) for line in logged] == [
        ("web", "requests", 1),
        ("web", "requests", 51),
    ]


def quarantine_wait(key: Allowance, size_bytes: int) -> tuple[str, float] | None:
    try:
        key.take_quarantine(size_bytes)
    except QuotaExceededError as err:
        return err.limit, round(err.wait_s, 6)
    return None


def test_quarantine_has_a_limit_of_its_own(time: Time) -> None:
    key = allowance(Quota(bytes=100, burst_s=10), time)
    share = 100 * QUARANTINE_SHARE
    assert quarantine_wait(key, int(share * 10)) is None
    assert quarantine_wait(key, int(share)) == ("quarantine", 1.0)
    assert wait(key) is None  # without a bad event
    assert quarantine_wait(key, 0) is None
    time.now += 1
    assert quarantine_wait(key, int(share)) is None


def test_request_with_more_bad_events_than_the_burst_is_not_refused_for_ever(time: Time) -> None:
    key = allowance(Quota(bytes=100, burst_s=10), time)
    assert quarantine_wait(key, 10**6) is None
    assert wait(key) == ("quarantine", round((10**6 - 250) / 25, 6))


def test_conflicts_are_charged_after_the_verdict_and_awaited_by_the_next_request(time: Time) -> None:
    key = allowance(Quota(bytes=100, burst_s=10), time)
    key.owe_quarantine(250)
    assert wait(key) is None
    key.owe_quarantine(25)
    assert wait(key) == ("quarantine", 1.0)
    with pytest.raises(QuotaExceededError, match="quarantine"):
        key.check(events=0, size_bytes=0)
    time.now += 1
    assert wait(key) is None


def test_key_without_a_limit_of_bytes_has_none_of_quarantine(time: Time) -> None:
    key = allowance(Quota(requests=10), time)
    key.owe_quarantine(10**12)
    assert (quarantine_wait(key, 10**12), wait(key)) == (None, None)
