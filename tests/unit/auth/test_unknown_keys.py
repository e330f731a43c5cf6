"""Claim: operators see who sends unknown keys, within bounds, and never a whole key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.auth.unknown_keys import KEY_CHARS, REPORT_INTERVAL_S, SENDERS_MAX, UnknownKeys, shown_part


class SetClock:
    def __init__(self) -> None:
        self.s = 1_000.0

    def now_ms(self) -> int:
        return round(self.s * 1000)

    def monotonic(self) -> float:
        return self.s


def test_senders_are_ranked_with_first_and_last_time() -> None:
    clock = SetClock()
    unknown = UnknownKeys(clock)
    for _ in range(3):
        unknown.note("old-key-of-ios", "192.0.2.1", "ios")
        clock.s += 1
    unknown.note("another-key", "192.0.2.1", "ios")
    (first, count), (second, _) = unknown.top()
    assert first == ("192.0.2.1", "old-", "ios")
    assert (count.requests, count.first_ms, count.last_ms) == (3, 1_000_000, 1_002_000)
    assert second.key == "anot"
    assert unknown.requests == 4


def test_busy_sender_stays_however_many_others_come() -> None:
    unknown = UnknownKeys(SetClock())
    for number in range(20_000):
        unknown.note(f"{number:08}", f"198.51.100.{number % 250}", "other")
        if number % 20 == 0:
            unknown.note("lost-key", "192.0.2.1", "android")
    assert len(unknown._counts) == SENDERS_MAX
    assert ("192.0.2.1", "lost", "android") in [sender for sender, _ in unknown.top()]
    assert len(unknown.top()) == 20


def test_earlier_senders_do_not_keep_out_a_new_busy_one() -> None:
    unknown = UnknownKeys(SetClock())
    for number in range(5 * SENDERS_MAX):
        unknown.note(f"{number % SENDERS_MAX:08}", f"198.51.100.{number % SENDERS_MAX}", "other")
    for number in range(500):
        unknown.note("lost-key", "192.0.2.1", "android")
        unknown.note(f"{number:08}", f"203.0.113.{number % 250}", "other")
    assert unknown.top()[0][0] == ("192.0.2.1", "lost", "android")


def test_log_has_one_line_an_interval() -> None:
    clock = SetClock()
    unknown = UnknownKeys(clock)
    with capture_logs() as lines:
        for _ in range(100):
            unknown.note("s3cret-key", "192.0.2.1", "curl")
        clock.s += REPORT_INTERVAL_S
        unknown.note("s3cret-key", "192.0.2.1", "curl")
    assert [line["requests"] for line in lines] == [1, 100]
    assert lines[0]["key_begins_with"] == "s3cr"
    assert "s3cret" not in str(lines)


@given(st.text(min_size=1))
def test_whole_key_is_never_shown(write_key: str) -> None:
    shown = shown_part(write_key)
    assert len(shown) <= min(KEY_CHARS, len(write_key) // 2) < len(write_key)
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("write_key", "shown"), [("a", ""), ("abc", "a"), ("abcdefgh", "abcd"), ("\x1b[31mred", "\ufffd[31")]
)
def test_part_that_is_shown(write_key: str, shown: str) -> None:
    assert shown_part(write_key) == shown
