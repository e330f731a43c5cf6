"""What an audit found, as plain values. Renders nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pipeline.audit.checks import NOTICES, OPEN_QUESTIONS, VIOLATIONS, Promise
from pipeline.audit.reconciliation import DIFFERS, Reconciliation
from pipeline.sources.records import Span

CLEAN, VIOLATED, UNDECIDED = "clean", "violated", "undecided"
_EXIT_CODES = {CLEAN: 0, VIOLATED: 1, UNDECIDED: 2}


class Named(NamedTuple):
    """One record that something is said about."""

    partition: int
    offset: int
    message_id: str | None
    source: str | None
    detail: str | None


@dataclass(frozen=True)
class Finding:
    """All records of one kind, the first of them by name."""

    count: int
    first: list[Named]


@dataclass(frozen=True)
class PartitionSummary:
    """What was read of one partition."""

    partition: int
    records: int
    first_offset: int
    last_offset: int
    first_seq: int | None
    last_seq: int | None
    last_time_us: int  # of the newest log time, since 1970
    counted: int  # in the range that the gateway's counters cover
    session_records: int
    faults: int  # bits of checks.examined
    is_in_order: bool  # surely, by pipeline/audit/stretches.py; else checks.chained tells
    first_topic: str | None  # other than the last one where an archive holds more than one
    last_topic: str | None


class SessionGaps(NamedTuple):
    """A client session that lacks sequences; of client and session only the hash is known."""

    client_hash: str  # hex
    session_hash: str
    partition: int
    acknowledged_through: int
    highest: int
    missing: int
    ranges: list[tuple[int, int]]  # first and last of each, at most clients.RANGES_MAX
    is_known_from_the_middle: bool
    """Whether what was stored of it before the records read is not known."""


@dataclass(frozen=True)
class ClientSessions:
    """What the client sessions of the records lack, after these records."""

    clients: int = 0
    sessions: int = 0
    with_gaps: int = 0
    missing: int = 0  # sequences, of all sessions
    known_from_the_middle: int = 0
    worst: list[SessionGaps] = field(default_factory=list)
    """Those that lack most, most first."""


class Timeline(NamedTuple):
    """How many records came when, in steps of equal length; a step without any is left out."""

    step_s: int
    records: Mapping[datetime, int]  # by the step's beginning, UTC


@dataclass(frozen=True)
class Audit:
    """The whole result."""

    source: str
    span: Span
    scope: str
    """What the verdict is about, in a few words."""
    is_scope_known: bool
    """Whether somebody told what should be there."""
    promise: Promise
    partition_count: int | None
    began: datetime
    partitions: list[PartitionSummary]
    timeline: Timeline
    findings: Mapping[str, Finding]
    client_sessions: ClientSessions
    violations_before: Mapping[str, int]
    """Found by earlier audits of the same memory, by kind."""
    reconciliation: Reconciliation
    doubts: list[str]
    """Why there can be no verdict, as sentences; empty if there can."""
    is_deep: bool
    seconds: float

    @property
    def records(self) -> int:
        return sum(summary.records for summary in self.partitions)

    @property
    def violations(self) -> dict[str, Finding]:
        return self._of(VIOLATIONS)

    @property
    def violations_ever(self) -> dict[str, int]:
        """How many were found by this and earlier audits of the same memory, by kind."""
        found = {kind: finding.count for kind, finding in self.violations.items()}
        before = self.violations_before
        return {kind: before.get(kind, 0) + found.get(kind, 0) for kind in {*before, *found}}

    @property
    def open_questions(self) -> dict[str, Finding]:
        return self._of(OPEN_QUESTIONS)

    @property
    def notices(self) -> dict[str, Finding]:
        return self._of(NOTICES)

    @property
    def verdict(self) -> str:
        if self.violations or self.reconciliation.state == DIFFERS:
            return VIOLATED
        return UNDECIDED if self.doubts or self.open_questions else CLEAN

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.verdict]

    def _of(self, kinds: Mapping[str, str]) -> dict[str, Finding]:
        return {kind: self.findings[kind] for kind in kinds if kind in self.findings}
