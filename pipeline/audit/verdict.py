"""The result of an audit, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pipeline.audit.checks import NOTICES, OPEN_QUESTIONS, VIOLATIONS
from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.reconciliation import DIFFERS, Reconciliation
from pipeline.sources.records import Selection

CLEAN, VIOLATED, UNDECIDED = "clean", "violated", "undecided"
_EXIT_CODES = {CLEAN: 0, VIOLATED: 1, UNDECIDED: 2}


class AffectedRecord(NamedTuple):
    """One record of a finding."""

    partition: int
    offset: int
    message_id: str | None
    source: str | None
    detail: str | None


@dataclass(frozen=True)
class Finding:
    """The number of records of one kind, and the first of them."""

    count: int
    first: list[AffectedRecord]


@dataclass(frozen=True)
class PartitionSummary:
    """The records read of one partition."""

    partition: int
    records: int
    first_offset: int
    last_offset: int
    first_seq: int | None
    last_seq: int | None
    last_time_us: int  # of the newest log time, since 1970
    counted: int  # in the range that the gateway's counters cover
    session_records: int
    unproved: int  # records without a checksum
    first_unproved: int | None  # offset
    erased: int
    first_erased: int | None
    faults: int  # bits of checks.check_records
    is_in_order: bool  # proven by pipeline/audit/stretches.py; else checks.check_order decides
    first_topic: str | None  # differs from the last one if an archive holds several topics
    last_topic: str | None


class SessionGaps(NamedTuple):
    """A client session that lacks sequences; records hold hashes of client and session only."""

    client_hash: str  # hex
    session_hash: str
    partition: int
    acknowledged_through: int
    highest: int
    missing: int
    ranges: list[tuple[int, int]]  # first and last of each, at most clients.RANGES_MAX
    is_known_from_the_middle: bool
    """Whether the sequences stored before these records are unknown."""


@dataclass(frozen=True)
class ClientSessions:
    """The gaps of all client sessions, after these records."""

    clients: int = 0
    sessions: int = 0
    with_gaps: int = 0
    missing: int = 0  # sequences, of all sessions
    known_from_the_middle: int = 0
    worst: list[SessionGaps] = field(default_factory=list)
    """Those that lack most, in descending order."""


class Timeline(NamedTuple):
    """The number of records in each step of time; empty steps are left out."""

    step_s: int
    records: Mapping[datetime, int]  # by the step's beginning, UTC


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit."""

    source: str
    selection: Selection
    scope: str
    """The records that the verdict covers, in a few words."""
    is_scope_known: bool
    """Whether a topic or ledger lists what the source should hold."""
    dedupe_bounds: DedupeBounds
    partition_count: int | None
    began: datetime
    partitions: list[PartitionSummary]
    timeline: Timeline
    findings: Mapping[str, Finding]
    client_sessions: ClientSessions
    violations_before: Mapping[str, int]
    """Of earlier audits with the same --since-last, by kind."""
    reconciliation: Reconciliation
    undecided_reasons: list[str]
    """Sentences why there is no verdict; empty if there is one."""
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
        """Of this and earlier audits with the same --since-last, by kind."""
        now = {kind: finding.count for kind, finding in self.violations.items()}
        before = self.violations_before
        return {kind: before.get(kind, 0) + now.get(kind, 0) for kind in {*before, *now}}

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
        return UNDECIDED if self.undecided_reasons or self.open_questions else CLEAN

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.verdict]

    def _of(self, kinds: Mapping[str, str]) -> dict[str, Finding]:
        return {kind: self.findings[kind] for kind in kinds if kind in self.findings}
