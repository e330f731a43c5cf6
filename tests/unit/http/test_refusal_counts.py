"""Claim: every refusal has its reason, source and library, and their number is bounded whoever sends."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.refusal_counts import SENDERS_MAX, SOURCES_MAX, RefusalCounts, Sender
from app.http.sdk_library import LIBRARIES, OTHER, library_of

CAPTURED = Path(__file__).parents[2] / "fixtures" / "sdk_requests.jsonl"


def note(counts: RefusalCounts, code: str, source: str | None, library: str = "curl") -> None:
    counts.note(code, 400, source, library, is_before_events=True)


def test_refusals_are_told_by_code_source_and_library() -> None:
    counts = RefusalCounts()
    for _ in range(9):
        counts.note("quota_exceeded", 429, "web", "browser", is_before_events=True)
    counts.note("disk_full", 503, "web", "browser", is_before_events=False)
    counts.note("invalid_write_key", 401, None, OTHER, is_before_events=True)
    assert counts.by_sender == {
        Sender("quota_exceeded", 429, "web", "browser"): 9,
        Sender("disk_full", 503, "web", "browser"): 1,
        Sender("invalid_write_key", 401, "", OTHER): 1,
    }
    assert counts.by_code == {"quota_exceeded": 9, "disk_full": 1, "invalid_write_key": 1}
    assert counts.before_events == 10


def test_sources_beyond_the_bound_are_one() -> None:
    counts = RefusalCounts()
    for number in range(SOURCES_MAX + 50):
        note(counts, "invalid_json", f"source-{number}")
    note(counts, "invalid_json", "source-0")
    assert len(counts.by_sender) == SOURCES_MAX + 1
    assert counts.by_sender[Sender("invalid_json", 400, OTHER, "curl")] == 50
    assert counts.by_sender[Sender("invalid_json", 400, "source-0", "curl")] == 2


def test_senders_beyond_the_bound_lose_their_library_and_none_its_count() -> None:
    counts = RefusalCounts()
    for number in range(SENDERS_MAX):
        note(counts, f"code-{number}", f"source-{number % 100}")
    for number in range(3 * SENDERS_MAX):
        note(counts, f"late-{number % 30}", f"source-{number % 100}", "browser")
    assert len(counts.by_sender) <= SENDERS_MAX + 30 * 100
    assert counts.by_sender[Sender("late-0", 400, "source-0", OTHER)] == 20
    assert counts.by_sender.total() == counts.by_code.total() == 4 * SENDERS_MAX


@pytest.mark.parametrize(
    ("agent", "library"),
    [
        ("analytics-python/2.4.0", "analytics-python"),
        ("analytics-node-next/latest", "analytics-node"),
        ("analytics-node/6.2.0", "analytics-node"),
        ("AnalyticsRuby/2.4.0", "analytics-ruby"),
        ("analytics-go (version: 3.0.0)", "analytics-go"),
        ("analytics-kotlin/1.16.0", "analytics-kotlin"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "browser"),
        ("okhttp/4.9.2", "android"),
        ("Dalvik/2.1.0 (Linux; U; Android 14)", "android"),
        ("Shop/7 CFNetwork/1490.0.4 Darwin/23.2.0", "ios"),
        ("node", "node"),
        ("", OTHER),
        ("x" * 10_000, OTHER),
        ("other/analytics-python", OTHER),
    ],
)
def test_library_is_told_by_its_product(agent: str, library: str) -> None:
    assert library_of({b"user-agent": agent.encode()}) == library


@given(st.binary(max_size=200))
def test_library_is_one_of_a_list_whatever_a_client_calls_itself(agent: bytes) -> None:
    assert library_of({b"user-agent": agent}) in LIBRARIES


def test_no_captured_sdk_is_unknown() -> None:
    requests = [orjson.loads(line) for line in CAPTURED.read_bytes().splitlines()]
    libraries = {
        library_of({name.lower().encode(): value.encode() for name, value in request["headers"]})
        for request in requests
    }
    assert libraries == {"analytics-node", "analytics-python", "browser", "node"}
