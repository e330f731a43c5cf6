"""
Counts of answers: each event is accepted, a duplicate, a conflict, rejected, unknown or refused.

The router counts the answers to this worker's clients; dedupe.partition.metrics counts a lane's decisions,
for the clients of all workers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dedupe.decide.admission import CONFLICT, NEW, Admission
from dedupe.decide.rejection import QUARANTINE_REASONS, RETRIABLE_CODES, RejectionCode
from dedupe.model.record import FLAG_PIECE
from dedupe.model.types import Event

SOURCES_MAX = 1_000
"""The limit of sources with counts of their own; later ones share one."""


def counts_of(admissions: Sequence[Admission]) -> Mapping[Admission, int]:
    """Return how often each verdict occurs, without those that do not."""
    if admissions and (count := admissions.count(admissions[0])) == len(admissions):
        return {admissions[0]: count}  # most batches; comparing different members is slow
    return Counter(admissions)


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
        """All events counted."""
        return self.accepted + self.duplicates + self.conflicts + self.rejected + self.unknown + self.refused

    def note(self, admissions: Sequence[Admission]) -> None:
        """Count verdicts."""
        self.add(counts_of(admissions))

    def add(self, counts: Mapping[Admission, int]) -> None:
        """Count verdicts that are counted by kind."""
        for kind, count in counts.items():
            if kind is NEW:
                self.accepted += count
            elif kind is CONFLICT:
                self.conflicts += count
            elif kind in QUARANTINE_REASONS:
                self.rejected += count
            elif kind in RETRIABLE_CODES:
                self.refused += count
            else:
                self.duplicates += count

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class SourceCounts(NamedTuple):
    """The answers to the events of a source."""

    tally: Tally
    reasons: Counter[str]
    """Its rejected and conflicting events by the reason of their quarantine record."""


class SourceTallies:
    """One tally for each source, and one for all further sources; their sum is the total."""

    def __init__(self) -> None:
        self._known: dict[str, Tally] = {}
        self._others = Tally()
        self._reasons: dict[str | None, Counter[str]] = {}

    def of(self, source: str) -> Tally:
        """Return the tally to add a source's events to."""
        tally = self._known.get(source)
        if tally is None:
            if len(self._known) >= SOURCES_MAX:
                return self._others
            tally = self._known[source] = Tally()
        return tally

    def note_reasons(self, source: str, reasons: Mapping[str, int]) -> None:
        """Count rejected and conflicting events of a source by reason; `of` must know it."""
        own = self._reasons.setdefault(source if source in self._known else None, Counter())
        own.update(reasons)

    def reasons_of(self, source: str | None) -> Counter[str]:
        """Return the reasons of a source's rejected and conflicting events; None: of all further sources."""
        return self._reasons.get(source, Counter())

    def first(self, count: int) -> tuple[list[tuple[str, SourceCounts]], SourceCounts]:
        """
        Return the first `count` sources that sent anything, and the sum of all others.

        No source ever leaves the first ones, so that no counter falls.
        """
        known = [(name, SourceCounts(tally, self.reasons_of(name))) for name, tally in self._known.items()]
        others = SourceCounts(
            sum((counts.tally for _, counts in known[count:]), self._others),
            sum((counts.reasons for _, counts in known[count:]), self.reasons_of(None)),
        )
        return known[:count], others

    def total(self) -> Tally:
        """Return the sum of all; safe in another thread while a source is added."""
        return sum(list(self._known.values()), self._others)

    def top(self, count: int) -> tuple[list[tuple[str, Tally]], Tally]:
        """Return the `count` sources with the most events, and the sum of all others."""
        ranked = sorted(self._known.items(), key=lambda known: known[1].received, reverse=True)
        return ranked[:count], sum((tally for _, tally in ranked[count:]), self._others)


class AnswerCounts:
    """The answers to clients, one for each event: by source, rejection code and error code."""

    def __init__(self) -> None:
        self.sources = SourceTallies()
        self.reasons: Counter[str] = Counter()
        """Rejected events by the reason of their quarantine record."""
        self.refused: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        """Events of requests that failed, by error code."""

    @property
    def totals(self) -> Tally:
        """The sum over all sources."""
        return self.sources.total()

    def note(
        self, events: Sequence[Event], rejected: Sequence[Event], admissions: Sequence[Admission]
    ) -> None:
        """Count a decided request; all its events have one source."""
        if not events and not rejected:
            return
        own, counts = self.sources.of((events or rejected)[0].source), counts_of(admissions)
        own.add(counts)
        if not rejected and QUARANTINE_REASONS.keys().isdisjoint(counts):
            return
        whole = [event for event in rejected if not event.flags & FLAG_PIECE]
        own.rejected += len(whole)
        reasons = Counter([event.reason or "" for event in whole])
        for kind, reason in QUARANTINE_REASONS.items():
            if kind in counts:
                reasons[reason.value] += counts[kind]
        self.sources.note_reasons((events or rejected)[0].source, reasons)
        del reasons[RejectionCode.CONFLICT.value]  # not rejected, but counted on its own
        self.reasons.update(reasons)

    def note_each(
        self, events: Sequence[Event], rejected: Sequence[Event], admissions: Sequence[Admission]
    ) -> None:
        """Count a decided request whose events have several sources."""
        for source in {event.source for event in (*events, *rejected)}:
            own = [number for number, event in enumerate(events) if event.source == source]
            self.note(
                [events[number] for number in own],
                [event for event in rejected if event.source == source],
                [admissions[number] for number in own],
            )

    def note_failure(self, events: Sequence[Event], code: str, *, is_untaken: bool) -> None:
        """Count a failed request: its events are unknown, or refused without any effect."""
        if not events:
            return
        counted = [event.source for event in events if not event.flags & FLAG_PIECE]
        for source, count in Counter(counted).items():
            own = self.sources.of(source)
            if is_untaken:
                own.refused += count
            else:
                own.unknown += count
        (self.refused if is_untaken else self.unknown)[code] += len(counted)
