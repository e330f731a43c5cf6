"""
Runs the checks and collects what they say: the only place where an audit brings rows to the driver.

What it brings is bounded: a row a partition and minute, and the first NAMED_MAX of each kind.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.audit import checks
from pipeline.audit.reconciliation import Reading, Reconciliation, Stats, reconcile
from pipeline.audit.verdict import Finding, Named, PartitionSummary
from pipeline.errors import UsageError
from pipeline.sources import KafkaSource, LakeSource, LogSource, Source, Span, read_partitions, standings

NAMED_MAX = 100  # of each kind; their number is always told


def partition_count(source: Source, records: DataFrame) -> int:
    """Return how many partitions the topic has; of an archive, as many as it shows."""
    match source:
        case KafkaSource():
            return len(standings(source.brokers, source.topic))
        case LogSource():
            return len(read_partitions(source.data_dir, source.topic))
        case LakeSource():
            last = records.agg(F.max("partition")).first()
            return 1 + (last[0] if last and last[0] is not None else 0)
        case _:
            raise UsageError(f"{source} has no partitions")


def survey(
    examined: DataFrame, counted_ranges: Mapping[int, tuple[int, int]]
) -> tuple[list[PartitionSummary], dict[datetime, int]]:
    """Read everything once, and return what each partition holds and the records of each minute."""
    rows = checks.surveyed(examined, counted_ranges).collect()
    minutes: dict[datetime, int] = {}
    for row in rows:
        minutes[row["minute"]] = minutes.get(row["minute"], 0) + row["records"]
    partitions = sorted({row["partition"] for row in rows})
    summaries = [
        _summed_up(partition, [row for row in rows if row["partition"] == partition])
        for partition in partitions
    ]
    return summaries, dict(sorted(minutes.items()))


def find(examined: DataFrame, summaries: list[PartitionSummary], *, window: timedelta) -> dict[str, Finding]:
    """Return the violations by kind; reads the records again only if the survey says that there are any."""
    if not any(checks.has_faults(summary.faults, summary.copies) for summary in summaries):
        return {}
    return collected(checks.violations(examined, window))


def find_notices(
    examined: DataFrame, summaries: list[PartitionSummary], *, retention: timedelta | None
) -> dict[str, Finding]:
    """Return what is worth knowing, by kind."""
    notices: dict[str, Finding] = {}
    if any(summary.session_records for summary in summaries):
        notices |= collected(checks.client_gaps(examined))
    if retention is not None:
        notices |= collected(checks.outside_retention(examined, retention))
    return notices


def collected(named: DataFrame) -> dict[str, Finding]:
    """Return how many rows of each kind there are, and the first NAMED_MAX of each."""
    of_kind = Window.partitionBy("kind")
    numbered = named.select(
        "*",
        F.count("*").over(of_kind).alias("count"),
        F.row_number().over(of_kind.orderBy("partition", "offset")).alias("number"),
    )
    found: dict[str, Finding] = {}
    for row in numbered.where(F.col("number") <= NAMED_MAX).orderBy("kind", "number").collect():
        finding = found.setdefault(row["kind"], Finding(row["count"], []))
        finding.first.append(Named(*(row[name] for name in Named._fields)))
    return found


def reconciled(
    stats: Stats | None, source: Source, span: Span, summaries: Sequence[PartitionSummary]
) -> Reconciliation:
    """Compare what was read with the gateway's counters, if there are any."""
    if stats is None:
        return Reconciliation(reasons=["no --stats given"])
    starts = _start_offsets(source, summaries)
    readings = {
        summary.partition: Reading(summary.counted, starts.get(summary.partition, 0), summary.last_seq)
        for summary in summaries
    }
    is_archive = isinstance(source, LakeSource)
    return reconcile(stats, readings, is_archive=is_archive, is_partial=not span.is_everything)


def _start_offsets(source: Source, summaries: Sequence[PartitionSummary]) -> dict[int, int]:
    match source:
        case KafkaSource():
            return {p: s.start_offset for p, s in standings(source.brokers, source.topic).items()}
        case LogSource():
            found = read_partitions(source.data_dir, source.topic)
            return {part.partition: part.log_start_offset for part in found}
        case _:
            # Whose first record is the partition's very first one has nothing before it.
            return {s.partition: 0 if s.first_seq == 0 else s.first_offset for s in summaries}


def _summed_up(partition: int, rows: Sequence[Row]) -> PartitionSummary:
    faults = 0
    for row in rows:
        faults |= row["faults"]
    seqs = [row for row in rows if row["first_seq"] is not None]
    return PartitionSummary(
        partition=partition,
        records=sum(row["records"] for row in rows),
        first_offset=min(row["first_offset"] for row in rows),
        last_offset=max(row["last_offset"] for row in rows),
        first_seq=min((row["first_seq"] for row in seqs), default=None),
        last_seq=max((row["last_seq"] for row in seqs), default=None),
        counted=sum(row["counted"] for row in rows),
        session_records=sum(row["session_records"] for row in rows),
        faults=faults,
        copies=max(row["copies"] for row in rows),
    )
