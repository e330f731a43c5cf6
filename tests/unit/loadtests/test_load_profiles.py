"""Claim: a load test takes no wrong answer for a right one, and no broken limit for success."""

from types import SimpleNamespace

import orjson
import pytest

from loadtests.load.__main__ import command
from loadtests.load.answers import (
    Counted,
    Place,
    WrongAnswerError,
    check_again,
    check_new,
    check_refusal,
    receipts_of,
)
from loadtests.load.options import Options
from loadtests.load.profiles import PROFILES, clients_at
from loadtests.load.sample import Compared, Sample, is_log_known
from loadtests.load.verdict import broken_limits, figures_of

GOOD = {"success": True, "receipts": [{"messageId": "a", "partition": 3, "offset": 0}]}
OPTIONS = Options(
    load_profile="steady",
    seconds=10,
    events_per_s=1000,
    batch_events=20,
    duplicates=0.1,
    skew=1,
    write_keys="a,b",
    hostile_key="c",
    p99_ms=0,
    refused_max=-1,
    failures_max=0,
    late_max=0.05,
    no_log=False,
    summary="",
)
WHOLE = Compared(1, [], [], [])


def entry(name: str, times: dict[int, int], *, failures: int = 0, method: str = "POST") -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        method=method,
        num_requests=sum(times.values()),
        num_failures=failures,
        response_times=times,
    )


def broken(*entries: SimpleNamespace, compared: Compared | None = WHOLE) -> list[str]:
    return broken_limits(OPTIONS, figures_of(entries), compared)


def test_a_whole_answer_gives_its_places() -> None:
    assert receipts_of(orjson.dumps(GOOD), ["a"], 1) == [Place("a", 3, 0)]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"success": False},
        GOOD | {"rejected": []},
        {"success": True},
        {"success": True, "receipts": []},
        {"success": True, "receipts": [{"messageId": "a", "partition": 3}]},
        {"success": True, "receipts": [{"messageId": "b", "partition": 3, "offset": 0}]},
        {"success": True, "receipts": [{"messageId": "a", "partition": -1, "offset": 0}]},
        {"success": True, "receipts": [{"messageId": "a", "partition": 3, "offset": None}]},
    ],
)
def test_anything_else_is_wrong(wrong: object) -> None:
    with pytest.raises(WrongAnswerError):
        receipts_of(orjson.dumps(wrong), ["a"], 1)


@pytest.mark.parametrize("body", [b"", b"[]", b"{"])
def test_an_answer_is_a_json_object(body: bytes) -> None:
    with pytest.raises(WrongAnswerError):
        receipts_of(body, ["a"], 1)


def test_counts_must_fit() -> None:
    check_new(2, Counted(2, 0), is_first_try=True)
    check_new(2, Counted(1, 1), is_first_try=False)
    check_again(2, Counted(0, 2), {"Idempotent-Replayed": "true"})
    with pytest.raises(WrongAnswerError, match="never sent before"):
        check_new(2, Counted(1, 1), is_first_try=True)
    with pytest.raises(WrongAnswerError, match="of 2 events"):
        check_new(2, Counted(1, 0), is_first_try=False)
    with pytest.raises(WrongAnswerError, match="a second time"):
        check_again(2, Counted(1, 1), {"Idempotent-Replayed": "true"})
    with pytest.raises(WrongAnswerError, match="Idempotent-Replayed"):
        check_again(2, Counted(0, 2), {})


def test_a_refusal_says_why_and_when_to_come_again() -> None:
    body = b'{"code":"overloaded","message":"too much"}'
    assert check_refusal(body, {"Retry-After": "3"}) == 3
    for wrong_body, wrong_after in ((b"{}", "3"), (body, "0"), (body, "soon"), (body, "")):
        with pytest.raises(WrongAnswerError):
            check_refusal(wrong_body, {"Retry-After": wrong_after})


def test_a_sample_is_compared_with_the_log() -> None:
    sample = Sample()
    sample.add([Place(name, 0, offset) for offset, name in enumerate(["kept", "lost", "twice", "moved"])])
    stored = [("kept", 0), ("other", 1), ("twice", 2), ("twice", 3), ("moved", 4)]
    lines = (orjson.dumps({"messageId": name, "partition": 0, "offset": offset}) for name, offset in stored)
    found = sample.compare(lines)
    assert found == Compared(4, ["lost"], ["twice"], ["moved"])
    assert not found.is_whole
    assert str(found) == (
        "4 receipts: 1 lost, e.g. lost; 1 twice or more, e.g. twice; 1 elsewhere, e.g. moved"
    )


def test_a_log_elsewhere_has_to_be_named() -> None:
    assert is_log_known("http://127.0.0.1:8080", {})
    assert not is_log_known("https://events.example.com", {})
    assert is_log_known("https://events.example.com", {"GATEWAY_LOG": "kafka"})


def test_nothing_sampled_proves_nothing() -> None:
    assert not Sample().compare([]).is_whole


def test_what_comes_while_the_log_is_read_is_not_sampled() -> None:
    sample = Sample()
    sample.add([Place("a", 0, 0)])
    sample.close()
    sample.add([Place("late", 0, 1)])
    assert sample.compare([b'{"messageId":"a","partition":0,"offset":0}']).is_whole


def test_what_workers_report_is_counted_once() -> None:
    worker, master = Sample(), Sample()
    worker.add([Place("a", 0, 0)])
    master.add(worker.take_unreported())
    assert worker.take_unreported() == []
    assert master.compare([b'{"messageId":"a","partition":0,"offset":0}']).is_whole


def test_a_run_within_its_limits_breaks_none() -> None:
    assert broken(entry("new", {5: 99, 900: 1}), entry("again", {3: 10})) == []


@pytest.mark.parametrize(
    ("entries", "compared", "sentence"),
    [
        ([entry("new", {5: 90, 1500: 10})], WHOLE, "p99 is 1,500 ms, more than 1,000"),
        ([entry("new", {5: 99}), entry("refused", {2: 1})], WHOLE, "1.0% were refused, more than 0.0%"),
        ([entry("new", {5: 100}, failures=1)], WHOLE, "1 answers were wrong or missing"),
        ([entry("new", {5: 100}), entry("hostile: body", {5: 9}, failures=2)], WHOLE, "2 answers were wrong"),
        ([entry("new", {5: 100}), entry("late", {150: 6}, method="locust")], WHOLE, "late with 6.0%"),
        ([entry("new", {5: 100})], Compared(1, ["x"], [], []), "the log disagrees: 1 receipts: 1 lost"),
        ([entry("refused", {5: 100})], None, "nothing was acknowledged"),
        ([], None, "nothing was acknowledged"),
    ],
)
def test_each_broken_limit_is_said(
    entries: list[SimpleNamespace], compared: Compared | None, sentence: str
) -> None:
    assert sentence in " ".join(broken(*entries, compared=compared))


def test_hostile_requests_count_for_no_limit_of_latency() -> None:
    assert broken(entry("new", {5: 100}), entry("hostile: flood", {9000: 100})) == []


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_fills_its_time_and_ends(name: str) -> None:
    profile = PROFILES[name]
    assert sum(stage.share for stage in profile.stages) == pytest.approx(1)
    counts = [clients_at(profile, second, seconds=60, basic=10) for second in (0, 30, 59.9, 60.1)]
    assert counts[-1] is None
    assert all(counts[:-1])


def test_a_spike_is_five_times_as_many() -> None:
    counts = [clients_at(PROFILES["spike"], second, seconds=60, basic=10) for second in (1, 30, 50)]
    assert counts == [10, 50, 10]


def test_locust_runs_without_a_page_on_loopback_unless_told_otherwise() -> None:
    words = command(["--load-profile", "spike"])
    assert words[words.index("--host") + 1] == "http://127.0.0.1:8080"
    assert "--headless" in words
    assert "--headless" not in command(["--web"])
    assert command(["--host=https://events.example.com"]).count("--host") == 0
    assert "--headless" not in command(["--worker"])
