"""
What is known of a place before its records are read: which offsets it is to hold, and who says so.

A topic is asked itself. What an archive is to hold, its ledger says, which its job writes with every batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pyspark.sql import SparkSession

from pipeline.audit.checks import UNJUDGED
from pipeline.audit.scope import Scope
from pipeline.audit.verdict import Finding, Named
from pipeline.errors import PipelineError
from pipeline.runtime.stall import stalled_partitions
from pipeline.sources.extent import Ranges, ranges_of, undecided_below
from pipeline.sources.origin import origin_of
from pipeline.sources.records import KafkaSource, LogSource, Offsets, Source, Span

Ledger: TypeAlias = Callable[[SparkSession], Scope | None]
"""Reads what an archive's ledger says; None if it has none."""


def no_ledger(_spark: SparkSession) -> Scope | None:
    """Of a place that has none."""
    return None


@dataclass(frozen=True)
class Known:
    """What is known of a place before its records are read."""

    scope: Scope = field(default_factory=Scope)
    stalled: list[str] = field(default_factory=list)
    topic_ranges: Ranges = field(default_factory=dict)
    """What the topic holds within the span; empty if no topic was asked."""
    unjudged: dict[str, Finding] = field(default_factory=dict)

    @property
    def starts(self) -> Offsets:
        """The first offset of each partition that is still in the topic."""
        return {partition: start for partition, (start, _) in self.topic_ranges.items()}

    def since(self, next_offsets: Offsets) -> "Known":
        """Return the same, of what comes after these offsets."""
        ranges = {
            p: (max(start, min(next_offsets.get(p, start), end)), end)
            for p, (start, end) in self.scope.ranges.items()
        }
        lost = [
            Named(p, next_offsets[p], None, None, f"up to offset {start - 1}")
            for p, start in self.starts.items()
            if next_offsets.get(p, start) < start
        ]
        count = sum(self.starts[named.partition] - named.offset for named in lost)
        unjudged = {UNJUDGED: Finding(count, lost)} if lost else {}
        return replace(self, scope=replace(self.scope, ranges=ranges), unjudged=unjudged)


def ask(source: Source, span: Span, *, may_be_empty: bool) -> Known:
    """
    Return what a topic is to hold within a span, as it is now; nothing is known of an archive.

    Raises:
        PipelineError: it does not answer, the span makes no sense there, or holds nothing.
    """
    if not isinstance(source, KafkaSource | LogSource):
        return Known()
    stalled = stalled_partitions(source, ends=undecided_below(source, span))
    ranges = ranges_of(source, span) or {}
    if not may_be_empty and all(start == end for start, end in ranges.values()):
        nothing = f"{source} holds no record in this range: there is nothing to judge"
        raise PipelineError("; ".join(stalled) or nothing)
    scope = Scope("the topic", source.topic, origin_of(source).id, len(ranges), ranges)
    return Known(scope, stalled, ranges)


def ask_archive(ledger: Scope | None, span: Span, topic: Known, against: Source | None) -> Known:
    """
    Return what an archive is to hold.

    Args:
        ledger: what its ledger says, if it has one.
        span: which part of it is asked for.
        topic: what its topic says.
        against: that topic; None if it was not asked.
    """
    if ledger is not None:
        ledger = replace(ledger, ranges=_clipped(ledger.ranges, span))
    if against is None:
        return Known(ledger or Scope())
    if ledger is None:
        return replace(topic, scope=replace(topic.scope, told_by=str(against), ranges={}))
    if ledger.origin != topic.scope.origin:
        raise PipelineError(f"--against {against} is not what the archive was taken from")
    return replace(topic, scope=replace(ledger, topic=topic.scope.topic))


def _clipped(ranges: Ranges, span: Span) -> Ranges:
    firsts, ends = span.from_offsets or {}, span.to_offsets or {}
    clipped: Ranges = {}
    for partition, (start, end) in ranges.items():
        last = min(end, ends.get(partition, end))
        clipped[partition] = (min(max(start, firsts.get(partition, start)), last), last)
    return clipped
