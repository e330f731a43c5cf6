"""
Runs an audit: finds out what the source should hold, reads it, evaluates it, and reports each step.

Everything that needs no Spark comes first, so that wrong usage fails before a session starts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pipeline.audit import checks, evaluation, scope
from pipeline.audit.checks import BEFORE_FIRST, DedupeBounds, PrecedingRecord
from pipeline.audit.columns import differing, read_with_changes
from pipeline.audit.deep import wrong_keys
from pipeline.audit.expected import Expected, expect_archive, expect_topic
from pipeline.audit.places import places
from pipeline.audit.reconciliation import Reading, Reconciliation, Stats, reconcile
from pipeline.audit.saved_state import AuditState, StateFolder
from pipeline.audit.scope import Scope
from pipeline.audit.verdict import (
    UNDECIDED,
    AuditResult,
    ClientSessions,
    Finding,
    PartitionSummary,
    Timeline,
)
from pipeline.errors import UsageError
from pipeline.runtime.progress import Progress
from pipeline.sources.extent import selection_of
from pipeline.sources.records import LakeSource, Selection, Source, read_records, within


@dataclass(frozen=True)
class AuditRequest:
    """The records to audit, and what the user states about them."""

    source: Source
    selection: Selection
    against: Source | None = None
    stats: Stats | None = None
    partitions: int | None = None
    begun_with: int | None = None
    """Partitions of before the topic was divided; None: it never was."""
    window: timedelta | None = None
    index_keys_max: int | None = None
    retention: timedelta | None = None
    secret: bytes | None = None
    is_shallow: bool = False
    """Leave out what an archive computes, and the content of its topic."""
    since_last: str | None = None
    """State folder of the last audit; None to audit the whole selection."""
    read_ledger: Callable[[SparkSession], Scope | None] = lambda _: None
    """Returns the scope of an archive's ledger; None if it has none."""

    @property
    def is_of_archive(self) -> bool:
        return isinstance(self.source, LakeSource)

    def check(self) -> None:
        """Raises UsageError: options contradict each other."""
        if self.against is not None and (isinstance(self.against, LakeSource) or not self.is_of_archive):
            raise UsageError("--against compares an archive with its topic, kafka:// or log://")
        if self.since_last is not None and (self.against is not None or not self.selection.is_everything):
            raise UsageError("--since-last audits new records, so it takes no times, offsets or --against")


def run_audit(
    start: Callable[[], SparkSession], request: AuditRequest, log_progress: Progress
) -> AuditResult:
    """
    Run an audit and return its result.

    Args:
        start: creates the session; called when it is needed.
        request: what to audit.

    Raises:
        PipelineError: the audit cannot be made.
    """
    began, clock = datetime.now(UTC), time.monotonic()
    request.check()
    topic = request.against or request.source
    log_progress(f"asking {topic}")
    expected = expect_topic(topic, request.selection, may_be_empty=request.since_last is not None)
    _check_partitions(request, expected.scope.partitions)
    log_progress("starting Spark")
    spark = start()
    if request.is_of_archive:
        ledger = request.read_ledger(spark)
        expected = expect_archive(ledger, request.selection, expected, request.against)
        _check_partitions(request, expected.scope.partitions)
    stats = request.stats and request.stats.about(expected.scope.topic, expected.scope.log_id)
    partitions = request.partitions or expected.scope.partitions or (len(stats.partitions) if stats else None)
    bounds = _dedupe_bounds(request, stats, partitions)
    folder, past = None, AuditState("")
    if request.since_last is not None:
        folder = StateFolder(spark, request.since_last)
        past = folder.load(str(request.source) if request.is_of_archive else str(expected.scope.origin))
        expected = expected.since(past.next_offsets)
    run = _Run(spark, request, expected, past, stats, partitions, bounds, log_progress)
    records = run.read()
    findings, undecided_reasons = run.evaluate(records, folder)
    client_sessions, gaps = run.client_sessions(records)
    result = AuditResult(
        source=str(request.source),
        selection=request.selection,
        scope=scope.sentence(expected.scope, request.selection, records.summaries, since=past.began),
        is_scope_known=expected.scope.listed_by is not None,
        dedupe_bounds=bounds,
        partition_count=partitions,
        began=began,
        partitions=records.summaries,
        timeline=records.timeline,
        findings=findings | gaps,
        client_sessions=client_sessions,
        violations_before=past.violations,
        reconciliation=run.reconcile(records),
        undecided_reasons=undecided_reasons,
        is_deep=request.secret is not None,
        seconds=time.monotonic() - clock,
    )
    if folder is not None and result.verdict != UNDECIDED:
        folder.save(past, run.next_state(result), records.checked)
    records.checked.unpersist()
    return result


def _add(findings: dict[str, Finding], more: dict[str, Finding]) -> None:
    """Add findings of other records, some of kinds that are there."""
    for kind, finding in more.items():
        before = findings.get(kind, Finding(0, []))
        first = [*before.first, *finding.first][: evaluation.NAMED_MAX]
        findings[kind] = Finding(before.count + finding.count, first)


def _check_partitions(request: AuditRequest, partitions: int | None) -> None:
    if None not in (request.partitions, partitions) and request.partitions != partitions:
        raise UsageError(f"--partitions says {request.partitions}, and the topic has {partitions}")


def _dedupe_bounds(request: AuditRequest, stats: Stats | None, partitions: int | None) -> DedupeBounds:
    """Return how far back ids are remembered: the user's options win over the gateway's settings."""
    bounds = stats.dedupe_bounds if stats else DedupeBounds()
    keys_max = bounds.keys_max
    # A quarantine has fewer partitions, and the same share of keys.
    clean = len(stats.document["partitions"]) if stats else partitions
    if request.index_keys_max is not None and clean is not None:
        keys_max = request.index_keys_max // clean
    return DedupeBounds(request.window or bounds.window, keys_max)


@dataclass(frozen=True)
class _Records:
    """The records of an audit, read and checked once."""

    all: DataFrame
    checked: DataFrame
    summaries: list[PartitionSummary]
    timeline: Timeline

    @property
    def count(self) -> int:
        return sum(summary.records for summary in self.summaries)

    @property
    def has_sessions(self) -> bool:
        return any(summary.session_records for summary in self.summaries)

    @property
    def topics(self) -> list[str]:
        names = {name for s in self.summaries for name in (s.first_topic, s.last_topic)}
        return sorted(name for name in names if name is not None)


@dataclass(frozen=True)
class _Run:
    """One audit, with everything that is known before the first record is read."""

    spark: SparkSession
    request: AuditRequest
    expected: Expected
    past: AuditState
    stats: Stats | None
    partitions: int | None
    bounds: DedupeBounds
    log_progress: Progress

    @property
    def begun_with(self) -> int | None:
        """The partitions by which keys are routed first."""
        return self.request.begun_with or self.partitions

    def read(self) -> _Records:
        """Read all records once; their checked columns stay on disk for the later checks."""
        selection, ranges = self.request.selection, self.expected.scope.ranges
        if self.request.is_of_archive:
            self.log_progress("reading the archive")
            if self.past.next_offsets:
                selection = Selection(from_offsets=self.past.next_offsets)
        else:
            self.log_progress(f"reading {sum(end - start for start, end in ranges.values()):,} offsets")
            selection = selection_of(ranges, selection)
        if isinstance(self.request.source, LakeSource) and not self.request.is_shallow:
            records = read_with_changes(self.spark, self.request.source, selection)
        else:
            records = read_records(self.spark, self.request.source, selection)
        checked = checks.check_records(records, self.begun_with).persist(StorageLevel.DISK_ONLY)
        counted_ranges = self.stats.counted_ranges if self.stats else {}
        summaries, timeline = evaluation.summarize(checked, self._preceding, counted_ranges)
        return _Records(records, checked, summaries, timeline)

    def evaluate(self, records: _Records, folder: StateFolder | None) -> tuple[dict[str, Finding], list[str]]:
        """Return the findings by kind, and the reasons why there is no verdict."""
        self.log_progress(f"comparing the keys of {records.count:,} records")
        earlier = folder.matching_keys(self.past, records.checked, records.count) if folder else None
        findings = evaluation.find_faults(
            records.checked,
            records.summaries,
            self._preceding,
            outlives_retention=self.request.is_of_archive,
        )
        findings |= self.expected.unjudged
        linked = None
        if records.has_sessions:
            linked = places(records.checked)
            earlier_links = folder.matching_links(self.past, linked) if folder else None
            linked = checks.with_earlier_keys(linked, earlier_links)
        own = checks.with_earlier_keys(records.checked, earlier)
        findings |= evaluation.find_repeats(own, linked, self.bounds)
        findings |= evaluation.find_notices(
            records.checked, records.summaries, retention=self.request.retention
        )
        if self.request.secret is not None and self.begun_with is not None:
            self.log_progress("recomputing every key")
            wrong = wrong_keys(records.all, secret=self.request.secret, partitions=self.begun_with)
            findings |= evaluation.collect_findings(wrong)
        missing, open_ends = self._completeness(records.summaries)
        _add(findings, self._differing(records))
        return findings | missing, self._undecided_reasons(records) + open_ends

    def _differing(self, records: _Records) -> dict[str, Finding]:
        """Compare the content of an archive with what its topic still holds."""
        topic, ranges = self.request.against, self.expected.topic_ranges
        if topic is None or self.request.is_shallow or not any(start < end for start, end in ranges.values()):
            return {}
        self.log_progress(f"comparing its content with {topic}")
        named = records.checked.where("faults != 0").select("partition", "offset")
        held = within(records.all, selection_of(ranges)).join(named, ["partition", "offset"], "left_anti")
        theirs = read_records(self.spark, topic, selection_of(ranges, self.request.selection))
        return evaluation.collect_findings(differing(held, theirs))

    def client_sessions(self, records: _Records) -> tuple[ClientSessions, dict[str, Finding]]:
        """Return the gaps of the records' client sessions; a quarantine has no sessions."""
        if records.has_sessions:
            self.log_progress("looking for gaps of client sessions")
        return evaluation.find_client_gaps(records.checked, records.summaries)

    def reconcile(self, records: _Records) -> Reconciliation:
        """Compare the records with the gateway's counters, if there are any."""
        if self.stats is None:
            return Reconciliation(reasons=["no --stats given"])
        if self.expected.scope.log_id is None:
            return Reconciliation(reasons=["the log that the archive was taken from is unknown"])
        topics = {summary.last_topic for summary in records.summaries}
        if any(self.stats.about(topic, None) != self.stats for topic in topics):
            return Reconciliation(reasons=["the counters of the quarantine need --against its topic"])
        return reconcile(self.stats, {s.partition: self._reading(s) for s in records.summaries})

    def next_state(self, result: AuditResult) -> AuditState:
        """Return the state for the next audit."""
        ends = {p: end for p, (_, end) in self.expected.scope.ranges.items()}
        if self.request.is_of_archive:
            ends = {summary.partition: summary.last_offset + 1 for summary in result.partitions}
        violations, window = result.violations_ever, self.bounds.window
        return self.past.after(result.partitions, ends, violations, began=result.began, window=window)

    @property
    def _preceding(self) -> dict[int, PrecedingRecord]:
        """The record before the first one of each partition, where it is known."""
        if self.request.selection.has_times:
            return {}
        ranges = self.expected.scope.ranges
        firsts = {p: BEFORE_FIRST for p, (start, _) in ranges.items() if start == 0}
        # A gateway whose partition retention has emptied may continue with another lane_seq.
        retained = {
            p: record
            for p, record in self.past.last_records.items()
            if self.request.is_of_archive or self.expected.starts.get(p, 0) <= record.offset
        }
        return firsts | retained

    def _undecided_reasons(self, records: _Records) -> list[str]:
        reasons = list(self.expected.stalled)
        if not records.summaries:
            return reasons if self.past.run else [*reasons, "there is not one record to audit"]
        if self.partitions is None:
            reasons.append(
                "it is unknown how many partitions the topic has, so none can be called wrong: --partitions"
            )
        if len(records.topics) > 1:
            topics = f"{len(records.topics)} topics, {', '.join(records.topics)}"
            reasons.append(f"the archive holds {topics}: audit one at a time")
        elif self.stats is not None and records.topics:
            self.stats.about(records.topics[0], None)
        return reasons

    def _completeness(self, summaries: Sequence[PartitionSummary]) -> tuple[dict[str, Finding], list[str]]:
        """Compare an archive with its topic if --against names it, else with its ledger."""
        if not self.request.is_of_archive or not summaries:
            return {}, []
        selection, expected = self.request.selection, self.expected
        if self.request.against is None:
            return scope.compare_with_ledger(expected.scope, selection, summaries, self._preceding)
        self.log_progress(f"comparing its ends with {self.request.against}")
        return scope.compare_with_topic(
            self.spark, expected.scope, summaries, self.request.against, expected.topic_ranges, selection
        )

    def _reading(self, summary: PartitionSummary) -> Reading:
        counted, last_seq = summary.counted, summary.last_seq
        if self.request.selection.has_times:
            return Reading(counted, summary.first_offset, summary.last_offset + 1, last_seq)
        # An archive that begins with the first record of the partition has nothing before it.
        from_first = 0 if summary.first_seq == 0 else summary.first_offset
        start, end = self.expected.scope.ranges.get(summary.partition, (from_first, None))
        return Reading(counted, start, end, last_seq)
