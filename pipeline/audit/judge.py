"""
Runs the checks and collects what they say: the only place where an audit brings rows to the driver.

What it brings is bounded: a row a partition, TIMES_MAX times, and the first NAMED_MAX of each kind.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.audit import checks, clients
from pipeline.audit.checks import Promise
from pipeline.audit.verdict import ClientSessions, Finding, Named, PartitionSummary, SessionGaps, Timeline

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


def find_notices(examined: DataFrame, *, retention: timedelta | None) -> dict[str, Finding]:
    """Return what is worth knowing, by kind."""
    return {} if retention is None else collected(checks.outside_retention(examined, retention))


def find_client_gaps(
    examined: DataFrame, summaries: Sequence[PartitionSummary]
) -> tuple[ClientSessions, dict[str, Finding]]:
    """Return what the client sessions lack, and a notice of the newest record of each that lacks most."""
    if not any(summary.session_records for summary in summaries):
        return ClientSessions(), {}
    whole = {summary.partition for summary in summaries if summary.first_seq == 0}
    sessions = clients.standings(examined, whole).persist(StorageLevel.DISK_ONLY)
    try:
        lacks = F.col("missing") > 0
        totals = sessions.agg(
            F.count_distinct("client_hash").alias("clients"),
            F.count("*").alias("sessions"),
            F.count_if(lacks).alias("with_gaps"),
            F.sum("missing").alias("missing"),
            F.count_if("is_from_middle").alias("known_from_the_middle"),
        ).collect()[0]
        worst = sessions.where(lacks).orderBy(F.desc("missing"), "client_hash", "session_hash")
        rows = worst.limit(NAMED_MAX).collect()
    finally:
        sessions.unpersist()
    told = {name: int(number) for name, number in totals.asDict().items()}
    gaps = [_session_gaps(row) for row in rows]
    named = [
        Named(
            gap.partition,
            row["last"]["offset"],
            row["last"]["message_id"],
            row["last"]["source"],
            _lacks(gap),
        )
        for gap, row in zip(gaps, rows, strict=True)
    ]
    found = {checks.CLIENT_GAP: Finding(told["with_gaps"], named)} if named else {}
    return ClientSessions(**told, worst=gaps), found


def _session_gaps(row: Row) -> SessionGaps:
    return SessionGaps(
        row["client_hash"].hex(),
        row["session_hash"].hex(),
        row["partition"],
        int(row["acknowledged_through"]),
        int(row["highest"]),
        int(row["missing"]),
        [(int(first), int(last)) for first, last in row["ranges"]],
        row["is_from_middle"],
    )


def _lacks(gap: SessionGaps) -> str:
    """Return what a session lacks as the header Gateway-Session-Missing says it."""
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in gap.ranges]
    told = sum(last - first + 1 for first, last in gap.ranges)
    text = ",".join(ranges if told == gap.missing else [*ranges, "..."])
    middle = ", known from the middle on" if gap.is_known_from_the_middle else ""
    return f"{gap.missing} missing: {text} (client {gap.client_hash}, session {gap.session_hash}{middle})"


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
