"""Which offsets a span means in a log as it is now. Asks the log, and needs no Spark."""

from datetime import datetime
from typing import NamedTuple, TypeAlias

from pipeline.errors import UsageError
from pipeline.sources import embedded_log, kafka
from pipeline.sources.embedded_log import read_partitions
from pipeline.sources.kafka import standings
from pipeline.sources.records import KafkaSource, LogSource, Offsets, Source, Span

Ranges: TypeAlias = dict[int, tuple[int, int]]
"""By partition: offsets [start, end)."""


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


def log_id_of(source: Source) -> str | None:
    """Return what tells a log from every other one, as its gateways say it; None for an archive."""
    match source:
        case KafkaSource():
            return kafka.identify_topic(source.brokers, source.topic).cluster_id
        case LogSource():
            return embedded_log.read_log_id(source.data_dir)
        case _:
            return None


def ends_of(source: Source, span: Span) -> Offsets:
    """Return of each partition where the span ends, if it does; a time ends before its first record."""
    ends = dict(span.to_offsets or {})
    if span.until is not None:
        for partition, end in offsets_at(source, span.until).items():
            ends[partition] = min(end, ends.get(partition, end))
    return ends


def ranges_of(source: Source, span: Span, ends: Offsets) -> Ranges | None:
    """
    Return the offsets of a span that can be read now, of every partition; None for an archive.

    Args:
        source: where they are.
        span: which of them.
        ends: of `ends_of`.

    Raises:
        UsageError: offsets are asked for that no partition has, or has any more.
    """
    bounds = bounds_of(source)
    if bounds is None:
        return None
    _check(bounds, span)
    firsts = dict(span.from_offsets or {})
    if span.since is not None:
        at_time = offsets_at(source, span.since)
        firsts = {p: max(firsts.get(p, 0), at_time.get(p, known.end)) for p, known in bounds.items()}
    ranges: Ranges = {}
    for partition, known in bounds.items():
        end = min(ends.get(partition, known.end), known.end)
        ranges[partition] = (min(max(firsts.get(partition, 0), known.start), end), end)
    return ranges


def span_of(ranges: Ranges) -> Span:
    """Return the span of these offsets."""
    return Span(
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
