"""
Conducts an audit: asks the place what it should hold, reads it, judges it, and says on the way what it does.

What needs no Spark comes first: a range that makes no sense is told of before a session starts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pipeline.audit import checks, judge, scope
from pipeline.audit.checks import BEFORE_FIRST, Place, Promise
from pipeline.audit.deep import wrong_keys
from pipeline.audit.known import Known, Ledger, ask, ask_archive, no_ledger
from pipeline.audit.memory import Memory, Remembered
from pipeline.audit.reconciliation import Reading, Reconciliation, Stats, reconcile
from pipeline.audit.verdict import UNDECIDED, Audit, ClientSessions, Finding, PartitionSummary, Timeline
from pipeline.errors import UsageError
from pipeline.sources.extent import span_of
from pipeline.sources.records import LakeSource, Source, Span, read_records

Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What is to be audited, and what was told about it."""

    source: Source
    span: Span
    against: Source | None = None
    stats: Stats | None = None
    partitions: int | None = None
    window: timedelta | None = None
    index_keys_max: int | None = None
    retention: timedelta | None = None
    secret: bytes | None = None
    since_last: str | None = None
    """Folder of what the last audit left; None to judge everything in the span."""
    ledger: Ledger = no_ledger

    @property
    def is_of_archive(self) -> bool:
        return isinstance(self.source, LakeSource)

    def check(self) -> None:
        """Raises UsageError: parts of it contradict each other."""
        if self.against is not None and (isinstance(self.against, LakeSource) or not self.is_of_archive):
            raise UsageError("--against compares an archive with its topic, kafka:// or log://")
        if self.since_last is not None and (self.against is not None or not self.span.is_everything):
            raise UsageError("--since-last judges what is new, so it takes no times, offsets or --against")


def conduct(start: Callable[[], SparkSession], order: Order, say: Say) -> Audit:
    """
    Return what an audit finds.

    Args:
        start: makes the session; called once it is needed.
        order: what is to be audited.
        say: is told what is done now, in a few words.

    Raises:
        PipelineError: nothing can be judged.
    """
    began, clock = datetime.now(UTC), time.monotonic()
    order.check()
    say(f"asking {order.against or order.source}")
    known = ask(order.against or order.source, order.span, may_be_empty=order.since_last is not None)
    _check_partitions(order, known.scope.partitions)
    say("starting Spark")
    spark = start()
    if order.is_of_archive:
        known = ask_archive(order.ledger(spark), order.span, known, order.against)
        _check_partitions(order, known.scope.partitions)
    stats = order.stats and order.stats.about(known.scope.topic, known.scope.log_id)
    partitions = _partitions(order, known.scope.partitions, stats)
    promise = _promise(order, stats, partitions)
    memory, past = None, Remembered("")
    if order.since_last is not None:
        memory = Memory(spark, order.since_last)
        past = memory.load(str(order.source) if order.is_of_archive else str(known.scope.origin))
        known = known.since(past.next_offsets)
    task = _Task(spark, order, known, past, stats, partitions, promise, say)
    seen = task.read()
    found, doubts = task.judge(seen, memory)
    client_sessions, gaps = task.client_sessions(seen)
    result = Audit(
        source=str(order.source),
        span=order.span,
        scope=scope.sentence(known.scope, order.span, seen.summaries, since=past.began),
        is_scope_known=known.scope.told_by is not None,
        promise=promise,
        partition_count=partitions,
        began=began,
        partitions=seen.summaries,
        timeline=seen.timeline,
        findings=found | gaps,
        client_sessions=client_sessions,
        violations_before=past.violations,
        reconciliation=task.reconciled(seen),
        doubts=doubts,
        is_deep=order.secret is not None,
        seconds=time.monotonic() - clock,
    )
    if memory is not None and result.verdict != UNDECIDED:
        memory.save(past, task.remembered(result), seen.examined)
    seen.examined.unpersist()
    return result


def _check_partitions(order: Order, known: int | None) -> None:
    if None not in (order.partitions, known) and order.partitions != known:
        raise UsageError(f"--partitions says {order.partitions}, and the topic has {known}")


def _partitions(order: Order, known: int | None, stats: Stats | None) -> int | None:
    return order.partitions or known or (len(stats.partitions) if stats else None)


def _promise(order: Order, stats: Stats | None, partitions: int | None) -> Promise:
    """Return how far back ids are remembered: what the user says goes before what the gateway does."""
    told = stats.promise if stats else Promise()
    keys_max = told.keys_max
    clean = len(stats.document["partitions"]) if stats else partitions  # a quarantine's share is as large
    if order.index_keys_max is not None and clean is not None:
        keys_max = order.index_keys_max // clean
    return Promise(order.window or told.window, keys_max)


@dataclass(frozen=True)
class _Seen:
    """What was read."""

    records: DataFrame
    examined: DataFrame
    summaries: list[PartitionSummary]
    timeline: Timeline

    @property
    def count(self) -> int:
        return sum(summary.records for summary in self.summaries)

    @property
    def topics(self) -> list[str]:
        names = {name for s in self.summaries for name in (s.first_topic, s.last_topic)}
        return sorted(name for name in names if name is not None)


@dataclass(frozen=True)
class _Task:
    """An order, and all that is known before the first record is read."""

    spark: SparkSession
    order: Order
    known: Known
    past: Remembered
    stats: Stats | None
    partitions: int | None
    promise: Promise
    say: Say

    def read(self) -> _Seen:
        """Read all records once; what is judged of them stays on disk for the checks after it."""
        span, ranges = self.order.span, self.known.scope.ranges
        if self.order.is_of_archive:
            self.say("reading the archive")
            if self.past.next_offsets:
                span = Span(from_offsets=self.past.next_offsets)
        else:
            self.say(f"reading {sum(end - start for start, end in ranges.values()):,} offsets")
            span = span_of(ranges, span)
        records = read_records(self.spark, self.order.source, span)
        examined = checks.examined(records, self.partitions).persist(StorageLevel.DISK_ONLY)
        counted_ranges = self.stats.counted_ranges if self.stats else {}
        return _Seen(records, examined, *judge.survey(examined, self._before, counted_ranges))

    def judge(self, seen: _Seen, memory: Memory | None) -> tuple[dict[str, Finding], list[str]]:
        """Return what is to be said of the records, by kind, and why there can be no verdict."""
        self.say(f"comparing the keys of {seen.count:,} records")
        earlier = memory.keys_like(self.past, seen.examined, seen.count) if memory else None
        found = judge.find(
            seen.examined, seen.summaries, self._before, outlives_retention=self.order.is_of_archive
        )
        found |= self.known.unjudged
        found |= judge.find_repeats(checks.with_known(seen.examined, earlier), self.promise)
        found |= judge.find_notices(seen.examined, retention=self.order.retention)
        if self.order.secret is not None and self.partitions is not None:
            self.say("recomputing every key")
            found |= judge.collected(
                wrong_keys(seen.records, secret=self.order.secret, partitions=self.partitions)
            )
        missing, open_ends = self._completeness(seen.summaries)
        return found | missing, self._doubts(seen) + open_ends

    def client_sessions(self, seen: _Seen) -> tuple[ClientSessions, dict[str, Finding]]:
        """Return what the client sessions of the records lack; a quarantine has none."""
        if any(summary.session_records for summary in seen.summaries):
            self.say("looking for what clients lost")
        return judge.find_client_gaps(seen.examined, seen.summaries)

    def reconciled(self, seen: _Seen) -> Reconciliation:
        """Compare what was read with the gateway's counters, if there are any."""
        if self.stats is None:
            return Reconciliation(reasons=["no --stats given"])
        if self.known.scope.log_id is None:
            return Reconciliation(reasons=["nobody told which log the archive was taken from"])
        topics = {summary.last_topic for summary in seen.summaries}
        if any(self.stats.about(topic, None) != self.stats for topic in topics):
            return Reconciliation(reasons=["--against the quarantine's topic tells which counters to take"])
        return reconcile(self.stats, {s.partition: self._reading(s) for s in seen.summaries})

    def remembered(self, result: Audit) -> Remembered:
        """Return what the next audit is to know."""
        ends = {p: end for p, (_, end) in self.known.scope.ranges.items()}
        if self.order.is_of_archive:
            ends = {summary.partition: summary.last_offset + 1 for summary in result.partitions}
        ever, window = result.violations_ever, self.promise.window
        return self.past.after(result.partitions, ends, ever, began=result.began, window=window)

    @property
    def _before(self) -> dict[int, Place]:
        """What comes before the first record of each partition, where that is known."""
        if self.order.span.has_times:
            return {}
        ranges = self.known.scope.ranges
        firsts = {p: BEFORE_FIRST for p, (start, _) in ranges.items() if start == 0}
        # Where retention has deleted the record, the gateway may have begun to count anew.
        still_there = {
            p: place
            for p, place in self.past.places.items()
            if self.order.is_of_archive or self.known.starts.get(p, 0) <= place.offset
        }
        return firsts | still_there

    def _doubts(self, seen: _Seen) -> list[str]:
        doubts = list(self.known.stalled)
        if not seen.summaries:
            return doubts if self.past.run else [*doubts, "there is not one record to judge"]
        if self.partitions is None:
            doubts.append(
                "nobody told how many partitions the topic has, so none can be called wrong: --partitions"
            )
        if len(seen.topics) > 1:
            doubts.append(
                f"the archive holds {len(seen.topics)} topics, {', '.join(seen.topics)}: audit one at a time"
            )
        elif self.stats is not None and seen.topics:
            self.stats.about(seen.topics[0], None)
        return doubts

    def _completeness(self, summaries: Sequence[PartitionSummary]) -> tuple[dict[str, Finding], list[str]]:
        """Compare an archive with its topic if that is at hand, else with its ledger."""
        if not self.order.is_of_archive or not summaries:
            return {}, []
        if self.order.against is None:
            return scope.lacking(self.known.scope, self.order.span, summaries, self._before)
        self.say(f"comparing its ends with {self.order.against}")
        now, span = self.known.topic_ranges, self.order.span
        return scope.compared(self.spark, self.known.scope, summaries, self.order.against, now, span)

    def _reading(self, summary: PartitionSummary) -> Reading:
        if self.order.span.has_times:
            return Reading(summary.counted, summary.first_offset, summary.last_offset + 1, summary.last_seq)
        # An archive whose first record is the partition's very first one has nothing before it.
        from_first = 0 if summary.first_seq == 0 else summary.first_offset
        start, end = self.known.scope.ranges.get(summary.partition, (from_first, None))
        return Reading(summary.counted, start, end, summary.last_seq)
