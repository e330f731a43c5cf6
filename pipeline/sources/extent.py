"""Which offsets a span means in a log as it is now. Asks the log, and needs no Spark."""

from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from pipeline import embedded_log
from pipeline.embedded_log import read_partitions
from pipeline.errors import UsageError
from pipeline.sources import kafka
from pipeline.sources.kafka import standings
from pipeline.sources.records import KafkaSource, LogSource, Offsets, Source, Span

Ranges: TypeAlias = dict[int, tuple[int, int]]
"""By partition: offsets [start, end)."""

CLOCKS_APART_MAX = timedelta(minutes=10)
"""Of a broker, that dates markers, and of a gateway, that dates records."""


class Bounds(NamedTuple):
    """Of one partition, as it is now."""

    start: int
    end: int  # what is committed lies below
    written: int  # above `end` only what belongs to open transactions


def bounds_of(source: Source) -> dict[int, Bounds] | None:
    """Return where the partitions of a log begin and end; None for an archive, which does not know."""
    match source:
        case KafkaSource():
            found = standings(source.brokers, source.topic)
            return {
                p: Bounds(s.start_offset, s.last_stable_offset, s.high_watermark) for p, s in found.items()
            }
        case LogSource():
            parts = read_partitions(source.data_dir, source.topic)
            return {p.partition: Bounds(p.log_start_offset, p.next_offset, p.next_offset) for p in parts}
        case _:
            return None


def offsets_at(source: Source, moment: datetime) -> Offsets:
    """Return of each partition of a log the first offset that is as new as this; none where all are older."""
    match source:
        case KafkaSource():
            return kafka.offsets_at(source.brokers, source.topic, moment)
        case LogSource():
            return embedded_log.offsets_at(source.data_dir, source.topic, moment)
        case _:
            return {}


def ranges_of(source: Source, span: Span) -> Ranges | None:
    """
    Return the offsets that hold all records of a span that can be read now; None for an archive.

    Times are no offsets: a marker of a transaction is as new as its broker's clock, so among these
    offsets are records of other times. Of Kafka the end is where the topic ends.

    Raises:
        UsageError: offsets are asked for that no partition has, or has any more.
    """
    bounds = bounds_of(source)
    if bounds is None:
        return None
    _check(bounds, span)
    firsts, ends = span.from_offsets or {}, span.to_offsets or {}
    since = offsets_at(source, span.since) if span.since is not None else None
    until = offsets_at(source, span.until) if span.until is not None and isinstance(source, LogSource) else {}
    ranges: Ranges = {}
    for partition, known in bounds.items():
        end = min(offsets.get(partition, known.end) for offsets in (ends, until, {partition: known.end}))
        first = max(firsts.get(partition, 0), known.start)
        if since is not None:
            first = max(first, since.get(partition, end))
        ranges[partition] = (min(first, end), end)
    return ranges


def records_ends(source: Source, ranges: Ranges) -> Offsets:
    """
    Return of each range what follows its last record, or its start; nothing where there are no markers.

    Raises PipelineError.
    """
    if not isinstance(source, KafkaSource):
        return {}
    return kafka.records_ends(source.brokers, source.topic, ranges)


def undecided_below(source: Source, span: Span) -> Offsets:
    """Return offsets of partitions from which on an open transaction is no concern of a span."""
    ends = dict(span.to_offsets or {})
    if span.until is not None:
        for partition, end in offsets_at(source, span.until + CLOCKS_APART_MAX).items():
            ends[partition] = min(end, ends.get(partition, end))
    return ends


def span_of(ranges: Ranges, times: Span = Span()) -> Span:  # noqa: B008  # it is frozen
    """Return the span of these offsets and of the times of another."""
    return Span(
        times.since,
        times.until,
        from_offsets={partition: start for partition, (start, _) in ranges.items()},
        to_offsets={partition: end for partition, (_, end) in ranges.items()},
    )


def _check(bounds: dict[int, Bounds], span: Span) -> None:
    for name, wanted in (("--from-offsets", span.from_offsets), ("--to-offsets", span.to_offsets)):
        for partition, offset in sorted((wanted or {}).items()):
            known = bounds.get(partition)
            if known is None:
                raise UsageError(f"{name} names partition {partition}, and there are {len(bounds)}")
            place = f"{name} names offset {offset} of partition {partition}"
            if offset > known.written:
                raise UsageError(f"{place}, which ends at {known.written}")
            if offset < known.start:
                raise UsageError(f"{place}, which begins at {known.start} now")
