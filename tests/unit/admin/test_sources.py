"""Claim: figures of sources add up over workers, begin anew at midnight, and have bounds for any client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from app.admin.sources import Sources, merged
from app.build import build_ingress_limits
from app.http.refusal_counts import RefusalCounts
from app.http.source_use import DAY_MS, SENDERS_MAX, Cause, SourceUse, is_retry
from app.peers.frames import packed, unpacked
from dedupe.decide.admission import DUPLICATE, NEW, REPEAT, STALE, Admission
from dedupe.metrics import AnswerCounts
from dedupe.model.types import Event
from tests.support.records import RecordMaker
from tests.support.settings import make_settings

MIDNIGHT_MS = 20_000 * DAY_MS
AGENT = b"analytics-node/3.1.0 (x)"


class Clock:
    """Shows what the test sets."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Worker:
    """Counts what a worker counts, in its order."""

    def __init__(self, folder: Path, *, ms: int = MIDNIGHT_MS - 3_600_000) -> None:
        self.clock, self.answers, self.use = Clock(ms), AnswerCounts(), SourceUse()
        self.refusals = RefusalCounts()
        settings = make_settings(mode="development", data_dir=folder)
        ingress = build_ingress_limits(settings, self.clock, index_files=0)
        self.sources = Sources(self.answers, self.refusals, ingress, self.use, self.clock)
        self._maker = RecordMaker(partitions=1)

    def decide(
        self,
        admissions: Sequence[Admission],
        *,
        source: str = "web",
        agent: bytes = AGENT,
        retry: bool = False,
    ) -> None:
        self.use.turn_day(self.clock.ms)
        events: list[Event] = [
            self._maker.event(f"{number}")._replace(source=source) for number, _ in enumerate(admissions)
        ]
        self.answers.note(events, [], admissions)
        self.use.note(
            events, admissions, {b"user-agent": agent} | ({b"x-retry-count": b"1"} if retry else {})
        )

    def figures(self) -> dict[str, Any]:
        return merged([self.sources.document()])


def of(document: dict[str, Any], source: str) -> dict[str, Any]:
    (found,) = [each for each in document["sources"] if each["source"] == source]
    return {"today": found["today"], "total": found["total"]}


def test_duplicates_have_their_cause(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.decide([NEW, REPEAT, DUPLICATE])
    worker.decide([DUPLICATE, STALE, REPEAT], retry=True)
    total = of(worker.figures(), "web")["total"]
    assert total["duplicate_causes"] == {Cause.SAME_REQUEST: 2, Cause.OTHER: 1, Cause.RETRY: 2}
    assert sum(total["duplicate_causes"].values()) == total["events"]["duplicates"]
    assert total["libraries"] == {"analytics-node 3.1.0": 2}
    node = "analytics-node 3.1.0"
    assert total["duplicate_libraries"] == {
        f"same_request: {node}": 2,
        f"other: {node}": 1,
        f"retry: {node}": 2,
    }


def test_duplicates_of_an_input_are_no_request(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    events = [RecordMaker(partitions=1).event("a")._replace(source="web")] * 3
    worker.use.note_input(events, [NEW, REPEAT, DUPLICATE])
    total = of(worker.figures(), "web")["total"]
    assert total["duplicate_libraries"] == {"same_request: input topic": 1, "input: input topic": 1}
    assert total["libraries"] == {}


def test_duplicates_of_a_request_with_several_sources_are_counted_for_each() -> None:
    use, maker = SourceUse(), RecordMaker(partitions=1)
    sources = ("web", "app", "web", "app", "app")
    events = [maker.event(f"{number}")._replace(source=source) for number, source in enumerate(sources)]

    use.note(events, [DUPLICATE, NEW, REPEAT, STALE, DUPLICATE], {})

    assert use.duplicates == {
        ("web", Cause.OTHER): 1,
        ("web", Cause.SAME_REQUEST): 1,
        ("app", Cause.OTHER): 2,
    }


def test_client_says_that_it_sends_again() -> None:
    assert is_retry({b"x-retry-count": b"1"})
    assert is_retry({b"rsa-recovered": b"true"})
    assert not is_retry({b"x-retry-count": b"0"})
    assert not is_retry({})


def test_today_begins_at_midnight(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    began_ms = worker.clock.ms
    worker.decide([NEW, NEW])
    assert worker.figures()["today_since_ms"] == worker.figures()["since_ms"] == began_ms
    worker.clock.ms = MIDNIGHT_MS + 5
    worker.decide([NEW, DUPLICATE], retry=True)
    figures = worker.figures()
    assert (figures["since_ms"], figures["today_since_ms"]) == (began_ms, MIDNIGHT_MS)
    assert of(figures, "web")["today"]["events"] == {"accepted": 1, "duplicates": 1}
    assert of(figures, "web")["today"]["libraries"] == {"analytics-node 3.1.0": 1}
    assert of(figures, "web")["total"]["events"] == {"accepted": 3, "duplicates": 1}
    worker.clock.ms += DAY_MS
    assert of(worker.figures(), "web")["today"]["events"] == {}


def test_figures_of_workers_are_added_also_through_their_link(tmp_path: Path) -> None:
    one, other = Worker(tmp_path / "1"), Worker(tmp_path / "2", ms=MIDNIGHT_MS - 1)
    for worker in (one, other):
        worker.decide([NEW, DUPLICATE, Admission.CONFLICT])
    other.decide([NEW], source="ios", agent=b"")
    sent = unpacked(memoryview(packed(other.sources.document())))
    figures = merged([one.sources.document(), sent])
    assert figures == merged([one.sources.document(), other.sources.document()])
    assert [each["source"] for each in figures["sources"]] == ["web", "ios"]
    assert of(figures, "web")["total"]["events"] == {"accepted": 2, "duplicates": 2, "conflicts": 2}
    assert of(figures, "web")["total"]["rejected_reasons"] == {"conflict": 2}
    assert (figures["workers"], figures["since_ms"]) == (2, MIDNIGHT_MS - 1)
    orjson.dumps(figures)


def test_clients_cannot_make_it_grow(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for number in range(SENDERS_MAX + 50):
        worker.decide([NEW], agent=b"analytics-go/%d.0" % number)
    worker.decide([NEW], source="late", agent=AGENT)
    libraries = worker.use.requests()
    assert len(libraries) <= SENDERS_MAX + 2
    assert sum(libraries.values()) == SENDERS_MAX + 51
    assert [sender.library for sender in libraries if sender.source == "late"] == ["other"]


def test_only_numbers_are_versions() -> None:
    use = SourceUse()
    event = RecordMaker(partitions=1).event("1")
    agents = [b"analytics-php/1.2.3-<script>", b"Mozilla/5.0 (X11)", b"analytics-go/x", b"evil/1.0\x1b[2J"]
    for agent in agents:
        use.note([event], [NEW], {b"user-agent": agent})
    assert {(sender.library, sender.version) for sender in use.requests()} == {
        ("analytics-php", "1.2.3"),
        ("browser", ""),
        ("analytics-go", ""),
        ("other", ""),
    }
