"""
Conducts an audit: asks the place what it should hold, reads it, judges it, and says on the way what it does.

What needs no Spark comes first: a range that makes no sense is told of before a session starts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from pipeline.audit import checks, judge, scope
from pipeline.audit.checks import Promise
from pipeline.audit.deep import wrong_keys
from pipeline.audit.reconciliation import Reading, Reconciliation, Stats, reconcile
from pipeline.audit.scope import Scope
from pipeline.audit.verdict import Audit, Finding, PartitionSummary
from pipeline.errors import PipelineError, UsageError
from pipeline.runtime import stalled_partitions
from pipeline.sources import (
    KafkaSource,
    LakeSource,
    LogSource,
    Source,
    Span,
    log_id_of,
    ranges_of,
    read_records,
    span_of,
    undecided_below,
)

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


@dataclass(frozen=True)
class Topic:
    """A topic as it was when the audit began."""

    source: Source
    scope: Scope
    stalled: list[str]


def ask_topic(source: Source, span: Span) -> Topic | None:
    """
    Return what a topic is to hold within a span; None of an archive.

    Raises:
        PipelineError: it does not answer, the span makes no sense there, or holds nothing.
    """
    if not isinstance(source, KafkaSource | LogSource):
        return None
    stalled = stalled_partitions(source, ends=undecided_below(source, span))
    ranges = ranges_of(source, span) or {}
    if all(start == end for start, end in ranges.values()):
        raise PipelineError(
            "; ".join(stalled) or f"{source} holds no record in this range: there is nothing to judge"
        )
    has_markers = not isinstance(source, LogSource)
    known = Scope("the topic", source.topic, log_id_of(source), len(ranges), ranges, has_markers)
    return Topic(source, known, stalled)


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
    is_archive = isinstance(order.source, LakeSource)
    if order.against is not None and (isinstance(order.against, LakeSource) or not is_archive):
        raise UsageError("--against compares an archive with its topic, kafka:// or log://")
    say(f"asking {order.against or order.source}")
    topic = ask_topic(order.against or order.source, order.span)
    known = _scope_of(order, topic)
    stats = order.stats and order.stats.about(known.topic, known.log_id)
    partitions = _partitions(order, known, stats)
    say("starting Spark")
    spark = start()
    records = read_records(
        spark, order.source, order.span if is_archive else span_of(known.ranges, order.span)
    )
    examined = checks.examined(records, partitions).persist(StorageLevel.DISK_ONLY)
    before = {} if order.span.has_times else known.before
    chained = checks.chained(examined, before, outlives_retention=is_archive)
    say(
        "reading"
        if is_archive
        else f"reading {sum(end - start for start, end in known.ranges.values()):,} offsets"
    )
    summaries, timeline = judge.survey(chained, stats.counted_ranges if stats else {})
    promise = _promise(order, stats, partitions)
    say(f"comparing the keys of {sum(summary.records for summary in summaries):,} records")
    found = judge.find(chained, summaries) | judge.find_repeats(examined, promise)
    found |= judge.find_notices(examined, summaries, retention=order.retention)
    doubts = _doubts(topic, summaries, partitions, stats)
    if order.secret is not None and partitions is not None:
        say("recomputing every key")
        found |= judge.collected(wrong_keys(records, secret=order.secret, partitions=partitions))
    if is_archive:
        more, open_ends = _completeness(spark, order, known, topic, summaries, say)
        found, doubts = found | more, doubts + open_ends
    examined.unpersist()
    return Audit(
        source=str(order.source),
        span=order.span,
        scope=scope.sentence(known, order.span, summaries),
        is_scope_known=known.told_by is not None,
        promise=promise,
        partition_count=partitions,
        began=began,
        partitions=summaries,
        timeline=timeline,
        findings=found,
        reconciliation=_reconciled(stats, known, order.span, summaries),
        doubts=doubts,
        is_deep=order.secret is not None,
        seconds=time.monotonic() - clock,
    )


def _scope_of(order: Order, topic: Topic | None) -> Scope:
    """Return what is known of the place that is read."""
    if topic is None:
        return Scope()
    if order.against is None:
        return topic.scope
    return replace(topic.scope, told_by=str(order.against), ranges={})


def _partitions(order: Order, known: Scope, stats: Stats | None) -> int | None:
    if None not in (order.partitions, known.partitions) and order.partitions != known.partitions:
        raise UsageError(f"--partitions says {order.partitions}, and {known.told_by} has {known.partitions}")
    return order.partitions or known.partitions or (len(stats.partitions) if stats else None)


def _promise(order: Order, stats: Stats | None, partitions: int | None) -> Promise:
    """Return how far back ids are remembered: what the user says goes before what the gateway does."""
    told = stats.promise if stats else Promise()
    keys_max = told.keys_max
    clean = len(stats.document["partitions"]) if stats else partitions  # a quarantine's share is as large
    if order.index_keys_max is not None and clean is not None:
        keys_max = order.index_keys_max // clean
    return Promise(order.window or told.window, keys_max)


def _doubts(
    topic: Topic | None, summaries: Sequence[PartitionSummary], partitions: int | None, stats: Stats | None
) -> list[str]:
    """Return why there can be no verdict."""
    doubts = list(topic.stalled) if topic else []
    if not summaries:
        return [*doubts, "there is not one record to judge"]
    if partitions is None:
        doubts.append(
            "nobody told how many partitions the topic has, so that none can be called wrong: --partitions"
        )
    topics = sorted({name for s in summaries for name in (s.first_topic, s.last_topic) if name is not None})
    if len(topics) > 1:
        doubts.append(f"the archive holds {len(topics)} topics, {', '.join(topics)}: audit one at a time")
    elif stats is not None:
        stats.about(topics[0] if topics else None, None)
    return doubts


def _completeness(
    spark: SparkSession,
    order: Order,
    known: Scope,
    topic: Topic | None,
    summaries: Sequence[PartitionSummary],
    say: Say,
) -> tuple[dict[str, Finding], list[str]]:
    """Compare an archive with its topic if that is at hand, else with its ledger."""
    if topic is None or not summaries:
        return scope.lacking(known, summaries)
    say(f"comparing its ends with {topic.source}")
    is_due = order.span.until is not None
    return scope.compared(spark, known, summaries, topic.source, topic.scope.ranges, is_due=is_due)


def _reconciled(
    stats: Stats | None, known: Scope, span: Span, summaries: Sequence[PartitionSummary]
) -> Reconciliation:
    """Compare what was read with the gateway's counters, if there are any."""
    if stats is None:
        return Reconciliation(reasons=["no --stats given"])
    if known.log_id is None:
        return Reconciliation(reasons=["nobody told which log the archive was taken from"])
    return reconcile(stats, {s.partition: _reading(s, known, span) for s in summaries})


def _reading(summary: PartitionSummary, known: Scope, span: Span) -> Reading:
    if span.has_times:
        return Reading(summary.counted, summary.first_offset, summary.last_offset + 1, summary.last_seq)
    # An archive whose first record is the partition's very first one has nothing before it.
    from_first = 0 if summary.first_seq == 0 else summary.first_offset
    start, end = known.ranges.get(summary.partition, (from_first, None))
    return Reading(summary.counted, start, end, summary.last_seq)
