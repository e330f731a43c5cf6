"""An audit before it reads: what is asked, what the source should hold, and what the gateway promises."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pyspark.sql import SparkSession

from pipeline.audit import scope
from pipeline.audit.checks import BEFORE_FIRST, PrecedingRecord
from pipeline.audit.division import Division
from pipeline.audit.expected import Expected, expect_archive
from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.proof import Known
from pipeline.audit.reconciliation import Reading, Reconciliation, Stats, reconcile
from pipeline.audit.saved_state import AuditState
from pipeline.audit.scope import Scope
from pipeline.audit.verdict import (
    AuditResult,
    ClientSessions,
    Finding,
    PartitionSummary,
    Timeline,
)
from pipeline.errors import UsageError
from pipeline.runtime.erasures import ErasureList
from pipeline.sources.extent import OffsetRanges
from pipeline.sources.local import LocalRecords
from pipeline.sources.records import LakeSource, Selection, Source


class Engine(StrEnum):
    """What reads the records."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True)
class AuditRequest:
    """The records to audit, and what the user states about them."""

    source: Source
    selection: Selection
    against: Source | None = None
    stats: Stats | None = None
    partitions: int | None = None
    division: Division | None = None
    """How the topic was divided; None: never."""
    window: timedelta | None = None
    index_keys_max: int | None = None
    retention: timedelta | None = None
    secret: bytes | None = None
    is_shallow: bool = False
    """Leave out what an archive computes, and the content of its topic."""
    since_last: str | None = None
    """State folder of the last audit; None to audit the whole selection."""
    read_ledger: Callable[[SparkSession], Sequence[Scope]] = lambda _: ()
    """Returns the scope of each log of an archive's ledger; none if it has no ledger."""
    read_local_ledger: Callable[[LocalRecords], Sequence[Scope]] = lambda _: ()
    """Does so without Spark."""
    log_epoch: int | None = None
    """The log of an archive to audit; None for the newest."""
    engine: Engine = Engine.AUTO
    erasures: ErasureList | None = None
    """Persons of whom an archive must hold nothing."""

    @property
    def is_provable(self) -> bool:
        """Whether a proof suffices; else the audit lists or saves something of each record."""
        return self.retention is None and self.since_last is None and self.division is None

    @property
    def is_of_archive(self) -> bool:
        return isinstance(self.source, LakeSource)

    def check(self) -> None:
        """Raises UsageError: options contradict each other."""
        if self.against is not None and (isinstance(self.against, LakeSource) or not self.is_of_archive):
            raise UsageError("--against compares an archive with its topic, kafka:// or log://")
        if self.since_last is not None and (self.against is not None or not self.selection.is_everything):
            raise UsageError("--since-last audits new records, so it takes no times, offsets or --against")
        if self.log_epoch is not None and not self.is_of_archive:
            raise UsageError("--epoch chooses a log of an archive, and a topic is one")


class AuditedRecords(NamedTuple):
    """What an audit has found out about its records."""

    summaries: list[PartitionSummary]
    timeline: Timeline
    findings: dict[str, Finding]
    client_sessions: ClientSessions = ClientSessions()
    undecided_reasons: Sequence[str] = ()


@dataclass(frozen=True)
class PreparedAudit:
    """An audit with everything that is known before the first record is read."""

    request: AuditRequest
    expected: Expected
    stats: Stats | None
    partitions: int | None
    bounds: DedupeBounds
    past: AuditState
    began: datetime
    clock: float  # time.monotonic()

    @classmethod
    def of(
        cls, request: AuditRequest, expected: Expected, ledger: Scope | None, began: datetime, clock: float
    ) -> "PreparedAudit":
        """
        Prepare an audit.

        Args:
            request: what to audit.
            expected: what its topic holds.
            ledger: of an archive; None if it has none.
            began: when the audit began.
            clock: time.monotonic() then.

        Raises:
            PipelineError: options contradict what the source is.
        """
        if request.is_of_archive:
            expected = expect_archive(ledger, request.selection, expected, request.against)
        check_partitions(request, expected)
        stats = request.stats and request.stats.about(expected.scope.topic, expected.scope.log_id)
        told = len(stats.partitions) if stats else None
        partitions = request.partitions or expected.scope.partitions or told
        bounds = _dedupe_bounds(request, stats, partitions)
        return cls(request, expected, stats, partitions, bounds, AuditState(""), began, clock)

    def since(self, past: AuditState) -> "PreparedAudit":
        """Return the audit of what came after an earlier one."""
        return replace(self, past=past, expected=self.expected.since(past.next_offsets))

    @property
    def begun_with(self) -> int | None:
        """The partitions by which keys are routed first."""
        division = self.request.division
        return self.partitions if division is None else division.begun_with

    @property
    def counted_ranges(self) -> OffsetRanges:
        """The offsets [start, end) that the gateway's counters cover, by partition."""
        return self.stats.counted_ranges if self.stats else {}

    @property
    def known(self) -> Known | None:
        """What a proof needs; None if it is unknown how many partitions the topic has."""
        if self.partitions is None:
            return None
        later_from = self.expected.scope.later_from
        return Known(self.partitions, self.preceding, self.counted_ranges, later_from)

    def result(self, records: AuditedRecords) -> AuditResult:
        """Return the result."""
        summaries, expected = records.summaries, self.expected
        return AuditResult(
            source=str(self.request.source),
            selection=self.request.selection,
            scope=scope.sentence(expected.scope, self.request.selection, summaries, since=self.past.began),
            is_scope_known=expected.scope.listed_by is not None,
            dedupe_bounds=self.bounds,
            partition_count=self.partitions,
            began=self.began,
            partitions=summaries,
            timeline=records.timeline,
            findings=records.findings,
            client_sessions=records.client_sessions,
            violations_before=self.past.violations,
            reconciliation=self.reconcile(summaries),
            undecided_reasons=self._undecided_reasons(summaries) + list(records.undecided_reasons),
            is_deep=self.request.secret is not None,
            seconds=time.monotonic() - self.clock,
        )

    def reconcile(self, summaries: Sequence[PartitionSummary]) -> Reconciliation:
        """Compare the records with the gateway's counters, if there are any."""
        if self.stats is None:
            return Reconciliation(reasons=["no --stats given"])
        if not self.expected.scope.is_newest:
            return Reconciliation(reasons=["the counters are of the archive's newest log"])
        if self.expected.scope.log_id is None:
            return Reconciliation(reasons=["the log that the archive was taken from is unknown"])
        topics = {summary.last_topic for summary in summaries}
        if any(self.stats.about(topic, None) != self.stats for topic in topics):
            return Reconciliation(reasons=["the counters of the quarantine need --against its topic"])
        return reconcile(self.stats, {s.partition: self._reading(s) for s in summaries})

    @property
    def preceding(self) -> dict[int, PrecedingRecord]:
        """The record before the first one of each partition, where it is known."""
        if self.request.selection.has_times:
            return {}
        ranges = self.expected.scope.ranges
        firsts = {p: self._before_first(p) for p, (start, _) in ranges.items() if start == 0}
        # A gateway whose partition retention has emptied may continue with another lane_seq.
        retained = {
            p: record
            for p, record in self.past.last_records.items()
            if self.request.is_of_archive or self.expected.starts.get(p, 0) <= record.offset
        }
        return {p: record for p, record in firsts.items() if record is not None} | retained

    def _before_first(self, partition: int) -> PrecedingRecord | None:
        """Return what is before offset 0: the records of a partition that was given slots go on."""
        if self.request.division is None:
            return BEFORE_FIRST
        lane_seq = self.request.division.first_lane_seqs.get(partition)
        return None if lane_seq is None else BEFORE_FIRST._replace(lane_seq=lane_seq - 1)

    def _undecided_reasons(self, summaries: Sequence[PartitionSummary]) -> list[str]:
        reasons = list(self.expected.stalled)
        if not summaries:
            return reasons if self.past.run else [*reasons, "there is not one record to audit"]
        names = {name for s in summaries for name in (s.first_topic, s.last_topic)}
        topics = sorted(name for name in names if name is not None)
        if self.partitions is None:
            reasons.append(
                "it is unknown how many partitions the topic has, so none can be called wrong: --partitions"
            )
        if len(topics) > 1:
            listed = f"{len(topics)} topics, {', '.join(topics)}"
            reasons.append(f"the archive holds {listed}: audit one at a time")
        elif self.stats is not None and topics:
            self.stats.about(topics[0], None)
        return reasons

    def _reading(self, summary: PartitionSummary) -> Reading:
        counted, last_seq = summary.counted, summary.last_seq
        if self.request.selection.has_times:
            return Reading(counted, summary.first_offset, summary.last_offset + 1, last_seq)
        # An archive that begins with the first record of the partition has nothing before it.
        from_first = 0 if summary.first_seq == 0 else summary.first_offset
        start, end = self.expected.scope.ranges.get(summary.partition, (from_first, None))
        return Reading(counted, start, end, last_seq)


def check_partitions(request: AuditRequest, expected: Expected) -> None:
    """Raise UsageError: --partitions is not how many the topic has."""
    partitions = expected.scope.partitions
    if None not in (request.partitions, partitions) and request.partitions != partitions:
        raise UsageError(f"--partitions says {request.partitions}, and the topic has {partitions}")


def _dedupe_bounds(request: AuditRequest, stats: Stats | None, partitions: int | None) -> DedupeBounds:
    """Return how far back ids are remembered: the user's options win over the gateway's settings."""
    bounds = stats.dedupe_bounds if stats else DedupeBounds()
    window, keys_max = request.window or bounds.window, bounds.keys_max
    if request.division is not None and request.division.periods:
        told = stats.document.get("index_keys_max") if stats else None
        return DedupeBounds(window, request.index_keys_max or told, request.division.periods)
    # A quarantine has fewer partitions, and the same share of keys.
    clean = len(stats.document["partitions"]) if stats else partitions
    if request.index_keys_max is not None and clean is not None:
        keys_max = request.index_keys_max // clean
    return DedupeBounds(window, keys_max)
