"""The offsets that a selection of records covers in a log as it is now. Needs no Spark."""

from datetime import datetime, timedelta
from typing import TypeAlias

from pipeline.errors import UsageError
from pipeline.sources import embedded_log, kafka
from pipeline.sources.kafka import PartitionPositions
from pipeline.sources.records import KafkaSource, LogSource, Offsets, Selection, Source

OffsetRanges: TypeAlias = dict[int, tuple[int, int]]
"""Offsets [start, end) by partition."""

CLOCK_SKEW_MAX = timedelta(minutes=10)
"""Between a broker, whose clock dates markers, and a gateway, whose clock dates records."""


def positions_of(source: Source) -> dict[int, PartitionPositions] | None:
    """Return the current offsets of each partition of a log; None for an archive."""
    match source:
        case KafkaSource():
            return kafka.topic_positions(source.brokers, source.topic, login=source.login)
        case LogSource():
            parts = embedded_log.read_partitions(source.data_dir, source.topic)
            return {
                p.partition: PartitionPositions(p.log_start_offset, p.next_offset, p.next_offset)
                for p in parts
            }
        case _:
            return None


def offsets_at(source: Source, moment: datetime) -> Offsets:
    """Return the first offset of each partition that is as new as a moment; one without it is left out."""
    match source:
        case KafkaSource():
            return kafka.offsets_at(source.brokers, source.topic, moment)
        case LogSource():
            return embedded_log.offsets_at(source.data_dir, source.topic, moment)
        case _:
            return {}


def ranges_of(source: Source, selection: Selection) -> OffsetRanges | None:
    """
    Return the offsets that hold all readable records of a selection; None for an archive.

    The ranges of a selection by time also hold records of other times: a broker's clock dates the
    markers of transactions. On Kafka each range reaches to the end of the topic.

    Raises:
        UsageError: the selection names offsets that a partition does not have.
    """
    positions = positions_of(source)
    if positions is None:
        return None
    _check(positions, selection)
    firsts, ends = selection.from_offsets or {}, selection.to_offsets or {}
    since = None if selection.since is None else offsets_at(source, selection.since)
    until = {}
    if selection.until is not None and isinstance(source, LogSource):
        until = offsets_at(source, selection.until)
    ranges: OffsetRanges = {}
    for partition, position in positions.items():
        stable = position.last_stable_offset
        end = min(ends.get(partition, stable), until.get(partition, stable), stable)
        first = max(firsts.get(partition, 0), position.start_offset)
        if since is not None:
            first = max(first, since.get(partition, end))
        ranges[partition] = (min(first, end), end)
    return ranges


def records_ends(source: Source, ranges: OffsetRanges) -> Offsets:
    """
    Return the offset after the last record of each range, or the range's start; nothing without markers.

    Raises PipelineError.
    """
    if not isinstance(source, KafkaSource):
        return {}
    return kafka.records_ends(source.brokers, source.topic, ranges)


def selection_ends(source: Source, selection: Selection) -> Offsets:
    """Return the offsets from which on an open transaction does not concern a selection."""
    ends = dict(selection.to_offsets or {})
    if selection.until is not None:
        for partition, end in offsets_at(source, selection.until + CLOCK_SKEW_MAX).items():
            ends[partition] = min(end, ends.get(partition, end))
    return ends


def selection_of(ranges: OffsetRanges, times: Selection = Selection()) -> Selection:  # noqa: B008  # it is frozen
    """Return the selection of these offsets and of the times of another selection."""
    return Selection(
        times.since,
        times.until,
        from_offsets={partition: start for partition, (start, _) in ranges.items()},
        to_offsets={partition: end for partition, (_, end) in ranges.items()},
    )


def _check(positions: dict[int, PartitionPositions], selection: Selection) -> None:
    options = (("--from-offsets", selection.from_offsets), ("--to-offsets", selection.to_offsets))
    for option, offsets in options:
        for partition, offset in sorted((offsets or {}).items()):
            position = positions.get(partition)
            if position is None:
                raise UsageError(f"{option} names partition {partition}, and there are {len(positions)}")
            text = f"{option} names offset {offset} of partition {partition}"
            if offset > position.high_watermark:
                raise UsageError(f"{text}, which ends at {position.high_watermark}")
            if offset < position.start_offset:
                raise UsageError(f"{text}, which begins at {position.start_offset} now")
