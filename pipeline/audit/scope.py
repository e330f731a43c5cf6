"""
The scope of a verdict: the records that it covers, and what lists them.

A topic lists its own offsets; the ledger of an archive, or its topic, lists those of the archive. Without
either, it is unknown what came before the first record of an archive, after its last one, and in
partitions without a record.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import MISSING, NOT_ARCHIVED
from pipeline.audit.verdict import AffectedRecord, Finding, PartitionSummary
from pipeline.sources.extent import OffsetRanges, selection_of
from pipeline.sources.records import Offsets, Selection, Source, read_records


@dataclass(frozen=True)
class Scope:
    """What a source should hold."""

    listed_by: str | None = None
    """The topic or ledger that lists it; None if it is unknown."""
    topic: str | None = None
    origin: str | None = None
    """The id of the log and its topic: Origin.id."""
    partitions: int | None = None
    ranges: OffsetRanges = field(default_factory=dict)
    """The offsets [start, end) of every partition; empty if they are unknown."""
    known_ends: frozenset[int] = frozenset()
    """Partitions whose range ends after a record, and not after a marker."""
    log_epoch: int | None = None
    """The number of the log, in an archive that has had several."""
    is_newest: bool = True
    """Whether it is the log that the archive goes on with."""
    later_from: Offsets | None = None
    """As of columns.read_with_changes."""

    @property
    def log_id(self) -> str | None:
        """The id of the log, as in the statistics of its gateways."""
        return None if self.origin is None else self.origin.partition(":")[2].partition("/")[0]

    @property
    def has_markers(self) -> bool:
        """Whether some offsets hold no record, as Kafka's markers do."""
        return self.origin is None or not self.origin.startswith("log:")


class Edge(NamedTuple):
    """Offsets [first, end) before the first or after the last record that an archive holds of a partition."""

    partition: int
    first: int
    end: int


def sentence(
    scope: Scope, selection: Selection, summaries: Sequence[PartitionSummary], *, since: str | None = None
) -> str:
    """Return what a verdict covers, as the object of "in"."""
    of_log = "" if scope.log_epoch is None else f" of log_epoch {scope.log_epoch}"
    what = f"everything{of_log} that" if selection.is_everything else f"the selected part{of_log} of what"
    if since is not None:
        what = f"what came since the audit of {since}, of what"
    times = _times(summaries)
    if scope.ranges:
        partitions = scope.partitions or len(scope.ranges)
        empty = partitions - len(summaries)
        none = f", {empty} of them without a record" if empty else ""
        return f"{what} {scope.listed_by} lists in {partitions} partitions{none}{times}"
    what = "the archive" if since is None else f"{what} the archive holds"
    read = f"{what}, from the first to the last record of each of {len(summaries)} partitions{times}"
    if scope.listed_by is not None:
        return f"{read}, and {scope.listed_by} was asked for more"
    return f"{read}; whether it should hold more is unknown"


def edges(ranges: OffsetRanges, summaries: Sequence[PartitionSummary]) -> tuple[list[Edge], list[Edge]]:
    """Return the offsets of these ranges before the first record, and those after the last one."""
    read = {summary.partition: summary for summary in summaries}
    heads = [Edge(p, start, read[p].first_offset) for p, (start, _) in ranges.items() if p in read]
    tails = [
        Edge(p, read[p].last_offset + 1 if p in read else start, end) for p, (start, end) in ranges.items()
    ]
    return [e for e in heads if e.first < e.end], [e for e in tails if e.first < e.end]


def compare_with_ledger(
    scope: Scope, selection: Selection, summaries: Sequence[PartitionSummary], begun: Collection[int]
) -> tuple[dict[str, Finding], list[str]]:
    """
    Compare an archive with its ledger alone, at the ends that no time of the selection cuts off.

    Args:
        scope: of the ledger.
        selection: of the audit.
        summaries: of the archive.
        begun: partitions whose preceding record is known, so that a gap shows what is missing.

    Returns:
        What is missing, and sentences where only the topic can show whether anything is.
    """
    heads, tails = edges(scope.ranges, summaries)
    heads = [edge for edge in heads if selection.since is None and edge.partition not in begun]
    tails = tails if selection.until is None else []
    if not scope.has_markers:
        return _missing([(edge, edge.end - edge.first) for edge in heads + tails]), []
    certain = [edge for edge in tails if edge.partition in scope.known_ends]
    open_edges = [edge for edge in heads + tails if edge not in certain]
    return _missing([(edge, edge.end - edge.first) for edge in certain]), [
        f"partition {p}: {scope.listed_by} lists offsets {first} to {end - 1}, and the archive has no record "
        "of them: --against the topic shows whether it should"
        for p, first, end in open_edges
    ]


def compare_with_topic(
    spark: SparkSession,
    scope: Scope,
    summaries: Sequence[PartitionSummary],
    topic: Source,
    now: OffsetRanges,
    selection: Selection,
) -> tuple[dict[str, Finding], list[str]]:
    """
    Compare an archive with its topic: read what the topic holds beyond both ends of the archive.

    Args:
        scope: of the archive's ledger, if it has one.
        summaries: of the archive.
        topic: that it was taken from.
        now: the offsets of the topic now, within the selection.
        selection: of the audit; up to its end time the archive should hold everything, and not only what
            its ledger lists.

    Returns:
        What is missing or not archived yet, and sentences where it is unknown which of the two.
    """
    heads, tails = edges(now, summaries)
    listed = now if selection.until is not None else scope.ranges
    held = {p: listed.get(p, (0, 0))[1] for p in now}
    begun = {p: start for p, (start, _) in scope.ranges.items()}
    heads = [edge._replace(first=max(edge.first, begun.get(edge.partition, 0))) for edge in heads]
    due = [edge._replace(end=min(edge.end, held[edge.partition])) for edge in tails]
    later = [edge._replace(first=max(edge.first, held[edge.partition])) for edge in tails]
    counted = partial(_counted, spark, topic, now, selection)
    missing, beyond = _missing(counted(heads) + counted(due)), counted(later)
    if scope.ranges:
        later_on = [
            AffectedRecord(p, first, None, None, f"{records} records") for (p, first, _), records in beyond
        ]
        if later_on:
            missing |= {NOT_ARCHIVED: Finding(sum(records for _, records in beyond), later_on)}
        return missing, []
    return missing, [
        f"partition {p}: the topic holds {records} records from offset {first} on that the archive does not: "
        "lost, or not archived yet; without a ledger, --until sets a time by which it should hold them"
        for (p, first, _), records in beyond
    ]


def _counted(
    spark: SparkSession, topic: Source, now: OffsetRanges, times: Selection, edges: Sequence[Edge]
) -> list[tuple[Edge, int]]:
    """Return each edge that holds records, cut to their offsets, and how many it holds."""
    wanted = {edge.partition: (edge.first, edge.end) for edge in edges if edge.first < edge.end}
    if not wanted:
        return []
    ranges = {p: (end, end) for p, (_, end) in now.items()} | wanted
    records = read_records(spark, topic, selection_of(ranges, times))
    sums = records.groupBy("partition").agg(
        F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    rows = sums.orderBy("partition").collect()
    return [(Edge(row["partition"], row["first"], row["last"] + 1), row["records"]) for row in rows]


def _missing(edges: Sequence[tuple[Edge, int]]) -> dict[str, Finding]:
    lacking = [
        AffectedRecord(p, first, None, None, f"{records} records up to offset {end - 1}")
        for (p, first, end), records in edges
    ]
    return {MISSING: Finding(sum(records for _, records in edges), lacking)} if lacking else {}


def _times(summaries: Sequence[PartitionSummary]) -> str:
    if not summaries:
        return ""
    newest = datetime.fromtimestamp(max(s.last_time_us for s in summaries) // 1_000_000, UTC)
    return f", up to {newest:%Y-%m-%dT%H:%M:%SZ}"
