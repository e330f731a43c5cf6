"""
What lanes and router count. Plain integers on the hot path; app.admin.application renders them.

Each event ends in exactly one of accepted, duplicates, conflicts, rejected, unknown or refused. The router
counts what clients were answered, once for each event they sent, by the worker that answered. A lane
counts what it decided, whichever worker asked: if recovery finds an event of unknown outcome committed
after all, it moves to `accepted` there, so accepted since `since_offset` always equals committed since then.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dedupe.admission import DUPLICATE, NEW, NOT_TAKEN, REJECTED, Admission
from dedupe.types import Event

SOURCES_MAX = 1_000
"""Sources that are counted apart; what later ones send counts as that of nobody in particular."""


LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
AGE_S = (1, 10, 60, 600, 3_600, 21_600, 43_200, *(days * 86_400 for days in (1, 2, 3, 4, 5, 6, 7, 14, 30)))
"""Upper edges of histograms: the window's own figures, 24 h and days, lie on some of them."""


class Histogram:
    """How often something was how much."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        """Take the upper edges, ascending; what is above the last one is counted apart."""
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count something, n times."""
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times

    def __add__(self, other: "Histogram") -> "Histogram":
        assert self.edges == other.edges
        both = Histogram(self.edges)
        both.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        both.total = self.total + other.total
        return both


@dataclass(slots=True)
class Tally:
    """Verdicts on events, counted once each."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    unknown: int = 0
    refused: int = 0

    @property
    def received(self) -> int:
        """How many events have found their verdict."""
        return self.accepted + self.duplicates + self.conflicts + self.rejected + self.unknown + self.refused

    def note(self, admissions: Sequence[Admission]) -> None:
        """Count what a client is answered."""
        new = admissions.count(NEW)
        self.accepted += new
        if new == len(admissions):
            return
        conflicts = admissions.count(Admission.CONFLICT)
        refused = sum([admissions.count(kind) for kind in NOT_TAKEN])
        rejected = sum([admissions.count(kind) for kind in REJECTED])
        self.conflicts += conflicts
        self.refused += refused
        self.rejected += rejected
        self.duplicates += len(admissions) - new - conflicts - refused - rejected

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class SourceTallies:
    """What each source was answered, of as many sources as are counted; together always the totals."""

    def __init__(self) -> None:
        self._known: dict[str, Tally] = {}
        self._others = Tally()

    def of(self, source: str) -> Tally:
        """Return the tally to add a source's events to."""
        tally = self._known.get(source)
        if tally is None:
            if len(self._known) >= SOURCES_MAX:
                return self._others
            tally = self._known[source] = Tally()
        return tally

    def total(self) -> Tally:
        """Return what all of them were answered; also in another thread, while a source comes."""
        return sum(list(self._known.values()), self._others)

    def top(self, count: int) -> tuple[list[tuple[str, Tally]], Tally]:
        """Return the sources that sent most, most first, and the sum of all others."""
        ranked = sorted(self._known.items(), key=lambda known: known[1].received, reverse=True)
        return ranked[:count], sum((tally for _, tally in ranked[count:]), self._others)


class AnswerCounts:
    """What clients were answered, once for each event: in all, by source, and why not."""

    def __init__(self) -> None:
        self.sources = SourceTallies()
        self.reasons: Counter[str] = Counter()
        """Why events were rejected, by the reason that their quarantine record has."""
        self.refused: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        """Events of requests that failed, by error code."""

    @property
    def totals(self) -> Tally:
        """What clients were answered in all."""
        return self.sources.total()

    def note(
        self, events: Sequence[Event], rejected: Sequence[Event], admissions: Sequence[Admission]
    ) -> None:
        """Count a request whose events all have their verdict, 0 <= n; all are of one source."""
        if not events and not rejected:
            return
        own = self.sources.of((events or rejected)[0].source)
        new = admissions.count(NEW)
        known = len(admissions) - new and admissions.count(DUPLICATE)
        if new + known == len(admissions) and not rejected:
            own.accepted += new
            own.duplicates += known
            return
        own.rejected += len(rejected)
        own.note(admissions)
        for event in rejected:
            self.reasons[event.reason or ""] += 1
        for kind in REJECTED:
            if kind in admissions:
                self.reasons[f"session_{kind.value}"] += admissions.count(kind)

    def note_failure(self, events: Sequence[Event], code: str, *, is_untaken: bool) -> None:
        """Count a request that failed: its events are unknown, or were refused before any effect."""
        if not events:
            return
        own = self.sources.of(events[0].source)
        if is_untaken:
            own.refused += len(events)
        else:
            own.unknown += len(events)
        (self.refused if is_untaken else self.unknown)[code] += len(events)


@dataclass(slots=True)
class LaneMetrics:
    """What one lane counts besides verdicts."""

    tally: Tally = field(default_factory=Tally)  # since since_offset
    earlier: Tally = field(default_factory=Tally)  # before it
    commits: int = 0
    commit_seconds: float = 0.0
    commit_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))  # append, commit and apply
    batch_events: Histogram = field(default_factory=lambda: Histogram(BATCH_EVENTS))  # decided at once
    queue_wait_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))  # of a batch's oldest
    duplicate_age_s: Histogram = field(default_factory=lambda: Histogram(AGE_S))  # since their originals came
    last_commit_ms: int | None = None  # log time of the newest commit of this process
    failures: int = 0
    restarts: int = 0  # of a lane that ended by itself, which is a bug
    fenced: int = 0
    rebuilds: int = 0
    begun_empty: int = 0  # indexes of logs with records that were not there: lost, or a new standby's
    sequence_gaps: int = 0
    sessions_fenced: int = 0  # events of client sessions: their client uses a newer epoch
    sessions_expired: int = 0  # events of client sessions that nobody remembers well enough
    restored_records: int = 0
    skipped_records: int = 0  # passed over while restoring, as an operator decided
    restore_lag: int = 0  # offsets still to replay
