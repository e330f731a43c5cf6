"""
What is judged, and how it is known that this is all: no verdict means more than its scope says.

A topic tells which offsets it holds. An archive tells it by the ledger that its job writes, or by
the topic beside it. Without either, nobody knows what came before its first record, after its last
one, and in partitions of which it has none.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import MISSING, NOT_ARCHIVED
from pipeline.audit.verdict import Finding, Named, PartitionSummary
from pipeline.sources.extent import Ranges, span_of
from pipeline.sources.records import Source, Span, read_records


@dataclass(frozen=True)
class Scope:
    """What is known of a place, beside its records."""

    told_by: str | None = None
    """Who knows it; None if nobody does."""
    topic: str | None = None
    origin: str | None = None
    """Which log, and which topic of it: what pipeline.sources.Origin calls id."""
    partitions: int | None = None
    ranges: Ranges = field(default_factory=dict)
    """Of every partition, the offsets [start, end) that are to be there; empty if nobody knows them."""
    known_ends: frozenset[int] = frozenset()
    """Partitions whose range ends behind a record, and not behind a marker."""

    @property
    def log_id(self) -> str | None:
        """Which log that is, as its gateways say it."""
        return None if self.origin is None else self.origin.partition(":")[2].partition("/")[0]

    @property
    def has_markers(self) -> bool:
        """Whether some offsets hold no record, as Kafka's markers do."""
        return self.origin is None or not self.origin.startswith("log:")


class Edge(NamedTuple):
    """Offsets [first, end) at an end of what an archive holds of a partition."""

    partition: int
    first: int
    end: int


def sentence(
    scope: Scope, span: Span, summaries: Sequence[PartitionSummary], *, since: str | None = None
) -> str:
    """Return what a verdict is about, to follow "in"."""
    what = "everything that" if span.is_everything else "the asked span of what"
    if since is not None:
        what = f"what came since the audit of {since}, of what"
    times = _times(summaries)
    if scope.ranges:
        partitions = scope.partitions or len(scope.ranges)
        empty = partitions - len(summaries)
        none = f", {empty} of them without a record" if empty else ""
        return f"{what} {scope.told_by} lists in {partitions} partitions{none}{times}"
    what = "the archive" if since is None else f"{what} the archive holds"
    seen = f"{what}, from the first to the last record of each of {len(summaries)} partitions{times}"
    if scope.told_by is not None:
        return f"{seen}, beyond which {scope.told_by} was asked for more"
    return f"{seen}; whether it should hold more, nobody told"


def edges(ranges: Ranges, summaries: Sequence[PartitionSummary]) -> tuple[list[Edge], list[Edge]]:
    """Return the offsets of these ranges before the first and behind the last record, where there are any."""
    read = {summary.partition: summary for summary in summaries}
    heads = [Edge(p, start, read[p].first_offset) for p, (start, _) in ranges.items() if p in read]
    tails = [
        Edge(p, read[p].last_offset + 1 if p in read else start, end) for p, (start, end) in ranges.items()
    ]
    return [edge for edge in heads if edge.first < edge.end], [
        edge for edge in tails if edge.first < edge.end
    ]


def lacking(
    scope: Scope, span: Span, summaries: Sequence[PartitionSummary], begun: Collection[int]
) -> tuple[dict[str, Finding], list[str]]:
    """
    Compare an archive with its ledger alone, at the ends that no time of the span cuts off.

    Args:
        scope: by the ledger.
        span: what is asked for.
        summaries: of the archive.
        begun: partitions of which it is known what comes first, so that a gap shows what is missing.

    Returns:
        What is missing, and where only the topic could tell whether anything is.
    """
    heads, tails = edges(scope.ranges, summaries)
    heads = [edge for edge in heads if span.since is None and edge.partition not in begun]
    tails = tails if span.until is None else []
    if not scope.has_markers:
        return _missing([(edge, edge.end - edge.first) for edge in heads + tails]), []
    certain = [edge for edge in tails if edge.partition in scope.known_ends]
    open_edges = [edge for edge in heads + tails if edge not in certain]
    return _missing([(edge, edge.end - edge.first) for edge in certain]), [
        f"partition {p}: {scope.told_by} lists offsets {first} to {end - 1}, and there is no record of them: "
        "--against the topic tells whether there should be"
        for p, first, end in open_edges
    ]


def compared(
    spark: SparkSession,
    scope: Scope,
    summaries: Sequence[PartitionSummary],
    topic: Source,
    now: Ranges,
    span: Span,
) -> tuple[dict[str, Finding], list[str]]:
    """
    Compare an archive with its topic: read what the topic holds beyond both ends of the archive.

    Args:
        spark: the session.
        scope: by the archive's ledger, if it has one.
        summaries: of the archive.
        topic: what it was taken from.
        now: the offsets that the topic has now, within the span.
        span: what is asked for; up to a time that it ends with, the archive is to hold everything, and
            not only what its ledger lists.

    Returns:
        What is missing or not archived yet, and where nobody knows which of the two.
    """
    heads, tails = edges(now, summaries)
    listed = now if span.until is not None else scope.ranges
    held = {p: listed.get(p, (0, 0))[1] for p in now}
    begun = {p: start for p, (start, _) in scope.ranges.items()}
    heads = [edge._replace(first=max(edge.first, begun.get(edge.partition, 0))) for edge in heads]
    due = [edge._replace(end=min(edge.end, held[edge.partition])) for edge in tails]
    later = [edge._replace(first=max(edge.first, held[edge.partition])) for edge in tails]
    counted = partial(_counted, spark, topic, now, span)
    found, beyond = _missing(counted(heads) + counted(due)), counted(later)
    if scope.ranges:
        named = [Named(p, first, None, None, f"{records} records") for (p, first, _), records in beyond]
        return found | ({NOT_ARCHIVED: Finding(sum(n for _, n in beyond), named)} if named else {}), []
    return found, [
        f"partition {p}: the topic holds {records} records from offset {first} on that the archive does not: "
        "lost, or not archived yet, and no ledger tells (--until names a time by which they should be there)"
        for (p, first, _), records in beyond
    ]


def _counted(
    spark: SparkSession, topic: Source, now: Ranges, times: Span, places: Sequence[Edge]
) -> list[tuple[Edge, int]]:
    """Return of each place that holds records from where to where they are, and how many."""
    asked = {edge.partition: (edge.first, edge.end) for edge in places if edge.first < edge.end}
    if not asked:
        return []
    ranges = {p: (end, end) for p, (_, end) in now.items()} | asked
    records = read_records(spark, topic, span_of(ranges, times))
    sums = records.groupBy("partition").agg(
        F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    rows = sums.orderBy("partition").collect()
    return [(Edge(row["partition"], row["first"], row["last"] + 1), row["records"]) for row in rows]


def _missing(places: Sequence[tuple[Edge, int]]) -> dict[str, Finding]:
    named = [
        Named(p, first, None, None, f"{records} records up to offset {end - 1}")
        for (p, first, end), records in places
    ]
    return {MISSING: Finding(sum(records for _, records in places), named)} if named else {}


def _times(summaries: Sequence[PartitionSummary]) -> str:
    if not summaries:
        return ""
    newest = datetime.fromtimestamp(max(s.last_time_us for s in summaries) // 1_000_000, UTC)
    return f", up to {newest:%Y-%m-%dT%H:%M:%SZ}"
