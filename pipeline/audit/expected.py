"""
What a source should hold, known before its records are read.

A topic lists its own offsets. The ledger that the archive job writes with every batch lists the archive's.
"""

from dataclasses import dataclass, field, replace

from pipeline.audit.checks import UNJUDGED
from pipeline.audit.scope import Scope
from pipeline.audit.verdict import AffectedRecord, Finding
from pipeline.errors import PipelineError
from pipeline.runtime.stall import stalled_partitions
from pipeline.sources.extent import OffsetRanges, ranges_of, selection_ends
from pipeline.sources.origin import origin_of
from pipeline.sources.records import KafkaSource, LogSource, Offsets, Selection, Source


@dataclass(frozen=True)
class Expected:
    """What a source should hold."""

    scope: Scope = field(default_factory=Scope)
    stalled: list[str] = field(default_factory=list)
    topic_ranges: OffsetRanges = field(default_factory=dict)
    """The topic's offsets within the selection; empty if no topic was asked."""
    unjudged: dict[str, Finding] = field(default_factory=dict)

    @property
    def starts(self) -> Offsets:
        """The first offset of each partition that is still in the topic."""
        return {partition: start for partition, (start, _) in self.topic_ranges.items()}

    def since(self, next_offsets: Offsets) -> "Expected":
        """Return the part from these offsets on; offsets that retention deleted before become `unjudged`."""
        ranges = {
            p: (max(start, min(next_offsets.get(p, start), end)), end)
            for p, (start, end) in self.scope.ranges.items()
        }
        lost = [
            AffectedRecord(p, next_offsets[p], None, None, f"up to offset {start - 1}")
            for p, start in self.starts.items()
            if next_offsets.get(p, start) < start
        ]
        count = sum(self.starts[record.partition] - record.offset for record in lost)
        unjudged = {UNJUDGED: Finding(count, lost)} if lost else {}
        return replace(self, scope=replace(self.scope, ranges=ranges), unjudged=unjudged)


def expect_topic(source: Source, selection: Selection, *, may_be_empty: bool) -> Expected:
    """
    Return what a topic holds now within a selection; of an archive nothing is known yet.

    Raises:
        PipelineError: the topic does not answer, lacks offsets of the selection, or holds none of it.
    """
    if not isinstance(source, KafkaSource | LogSource):
        return Expected()
    stalled = stalled_partitions(source, ends=selection_ends(source, selection))
    ranges = ranges_of(source, selection) or {}
    if not may_be_empty and all(start == end for start, end in ranges.values()):
        nothing = f"{source} holds no record in this range: there is nothing to audit"
        raise PipelineError("; ".join(stalled) or nothing)
    scope = Scope("the topic", source.topic, origin_of(source).id, len(ranges), ranges)
    return Expected(scope, stalled, ranges)


def expect_archive(
    ledger: Scope | None, selection: Selection, topic: Expected, against: Source | None
) -> Expected:
    """
    Return what an archive should hold.

    Args:
        ledger: the scope of its ledger, if it has one.
        selection: of the audit.
        topic: what the topic holds.
        against: the topic; None if it was not asked.
    """
    if ledger is not None:
        ledger = replace(ledger, ranges=_clipped(ledger.ranges, selection))
    if against is None:
        return Expected(ledger or Scope())
    if ledger is None or ledger.listed_by is None:
        later_from = None if ledger is None else ledger.later_from
        listed = replace(topic.scope, listed_by=str(against), ranges={}, later_from=later_from)
        return replace(topic, scope=listed)
    if ledger.origin != topic.scope.origin:
        raise PipelineError(f"--against {against} is not what the archive was taken from")
    return replace(topic, scope=replace(ledger, topic=topic.scope.topic))


def _clipped(ranges: OffsetRanges, selection: Selection) -> OffsetRanges:
    firsts, ends = selection.from_offsets or {}, selection.to_offsets or {}
    clipped: OffsetRanges = {}
    for partition, (start, end) in ranges.items():
        last = min(end, ends.get(partition, end))
        clipped[partition] = (min(max(start, firsts.get(partition, start)), last), last)
    return clipped
