"""What an audit found, as plain values. Renders nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pipeline.audit.reconciliation import DIFFERS, Reconciliation
from pipeline.sources import Span

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
    counted: int  # in the range that the gateway's counters cover
    session_records: int
    faults: int  # bits of checks.examined
    copies: int  # of the event stored most often


@dataclass(frozen=True)
class Audit:
    """The whole result."""

    source: str
    span: Span
    partitions: list[PartitionSummary]
    minutes: Mapping[datetime, int]
    violations: Mapping[str, Finding]
    notices: Mapping[str, Finding]
    reconciliation: Reconciliation
    stalled: list[str]
    is_deep: bool
    seconds: float

    @property
    def records(self) -> int:
        return sum(summary.records for summary in self.partitions)

    @property
    def is_violated(self) -> bool:
        return bool(self.violations) or self.reconciliation.state == DIFFERS

    @property
    def doubts(self) -> list[str]:
        """Why there can be no verdict; empty if there can."""
        return [*self.stalled, *([] if self.records else ["there is not one record to judge"])]

    @property
    def verdict(self) -> str:
        if self.is_violated:
            return VIOLATED
        return UNDECIDED if self.doubts else CLEAN

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.verdict]
