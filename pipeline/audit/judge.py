"""
Runs the checks and collects what they say: the only place where an audit brings rows to the driver.

What it brings is bounded: a row a partition, TIMES_MAX times, and the first NAMED_MAX of each kind.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.audit import checks
from pipeline.audit.checks import Promise
from pipeline.audit.verdict import Finding, Named, PartitionSummary, Timeline

NAMED_MAX = 100  # of each kind; their number is always told
TIMES_MAX = 500  # of a timeline
MINUTE_S = 60
TIME_STEPS_S = (60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""Widths of a timeline's columns; of the last one, multiples."""


def survey(
    chained: DataFrame, counted_ranges: Mapping[int, tuple[int, int]]
) -> tuple[list[PartitionSummary], Timeline]:
    """Read everything once, and return what each partition holds and how many records came when."""
    minutes = checks.surveyed(chained, counted_ranges).persist(StorageLevel.DISK_ONLY)
    try:
        rows = _folded(minutes).orderBy("partition").collect()
        step_s = _step_s(rows)
        return [_summary(row) for row in rows], Timeline(step_s, _timeline(minutes, step_s))
    finally:
        minutes.unpersist()


def find(chained: DataFrame, summaries: Sequence[PartitionSummary]) -> dict[str, Finding]:
    """Return what the survey says that there is to name, by kind."""
    return collected(checks.faulty(chained)) if any(summary.faults for summary in summaries) else {}


def find_repeats(examined: DataFrame, promise: Promise) -> dict[str, Finding]:
    """Return the events that are stored more than once, by kind."""
    hashes = checks.repeated_hashes(examined)
    return {} if hashes.isEmpty() else collected(checks.repeats(examined, hashes, promise))


def find_notices(
    examined: DataFrame, summaries: Sequence[PartitionSummary], *, retention: timedelta | None
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


def _folded(minutes: DataFrame) -> DataFrame:
    """Sum up the rows of `checks.surveyed` per partition; times become seconds since 1970."""
    return minutes.groupBy("partition").agg(
        F.sum("records").alias("records"),
        F.sum("counted").alias("counted"),
        F.bit_or("faults").alias("faults"),
        F.sum("session_records").alias("session_records"),
        *(F.min(name).alias(name) for name in ("first_offset", "first_seq", "first_topic")),
        *(F.max(name).alias(name) for name in ("last_offset", "last_seq", "last_topic")),
        F.unix_micros(F.max("last_time")).alias("last_time_us"),
        F.min(F.unix_seconds("minute")).alias("first_minute_s"),
        F.max(F.unix_seconds("minute")).alias("last_minute_s"),
    )


def _timeline(minutes: DataFrame, step_s: int) -> dict[datetime, int]:
    step = F.unix_seconds("minute") - F.pmod(F.unix_seconds("minute"), F.lit(step_s))
    sums = minutes.groupBy(step.alias("step")).agg(F.sum("records").alias("records")).orderBy("step")
    return {datetime.fromtimestamp(row["step"], UTC): row["records"] for row in sums.collect()}


def _step_s(rows: Sequence[Row]) -> int:
    """Return the smallest width with which a timeline is short enough."""
    if not rows:
        return MINUTE_S
    length_s = (
        max(row["last_minute_s"] for row in rows) - min(row["first_minute_s"] for row in rows) + MINUTE_S
    )
    needed_s = -(-length_s // TIMES_MAX)
    longest_s = TIME_STEPS_S[-1]
    return next(
        (step_s for step_s in TIME_STEPS_S if step_s >= needed_s), -(-needed_s // longest_s) * longest_s
    )


def _summary(row: Row) -> PartitionSummary:
    values = row.asDict()
    return PartitionSummary(**{name: values[name] for name in PartitionSummary.__dataclass_fields__})
