"""
Runs the checks and collects what they say: the only place where an audit brings rows to the driver.

What it brings is bounded: ROWS_MAX rows of a survey, and the first NAMED_MAX of each kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.audit import checks, clients, stretches
from pipeline.audit.checks import Place, Promise
from pipeline.audit.verdict import ClientSessions, Finding, Named, PartitionSummary, SessionGaps, Timeline

NAMED_MAX = 100  # of each kind; their number is always told
TIMES_MAX = 500  # of a timeline
TIME_STEPS_S = (60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""Widths of a timeline's columns; of the last one, multiples."""

ROW_STEPS_S = (60, 600, 3600, 86_400)
"""Widths of what is brought for it, each of them a part of all longer ones, until few enough rows come."""

ROWS_MAX = 200_000
"""Minutes of sixteen partitions in a week are less, and 100 MB of memory; more are asked for once more."""


def survey(
    examined: DataFrame, before: Mapping[int, Place], counted_ranges: Mapping[int, tuple[int, int]]
) -> tuple[list[PartitionSummary], Timeline]:
    """Read everything once, and return what each partition holds and how many records came when."""
    linked = stretches.linked(stretches.stretches(examined, counted_ranges), before)
    for step_s in ROW_STEPS_S[:-1]:
        rows = stretches.surveyed(linked, step_s).limit(ROWS_MAX + 1).collect()
        if len(rows) <= ROWS_MAX:
            break
    else:
        step_s = ROW_STEPS_S[-1]
        rows = stretches.surveyed(linked, step_s).collect()
    partitions = groupby(sorted(rows, key=itemgetter("partition")), key=itemgetter("partition"))
    return [_summary(p, list(of_partition)) for p, of_partition in partitions], _timeline(rows, step_s)


def find(
    examined: DataFrame,
    summaries: Sequence[PartitionSummary],
    before: Mapping[int, Place],
    *,
    outlives_retention: bool = False,
) -> dict[str, Finding]:
    """Return what is wrong with single records and with their order, by kind; costly unless all is proven."""
    if all(summary.is_in_order and not summary.faults for summary in summaries):
        return {}
    return collected(checks.faulty(checks.chained(examined, before, outlives_retention=outlives_retention)))


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


def _summary(partition: int, rows: Sequence[Row]) -> PartitionSummary:
    """Sum up rows of `stretches.surveyed` of one partition."""

    def known(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    return PartitionSummary(
        partition,
        records=sum(known("records")),
        first_offset=min(known("first_offset")),
        last_offset=max(known("last_offset")),
        first_seq=min(known("first_seq"), default=None),
        last_seq=max(known("last_seq"), default=None),
        last_time_us=max(known("last_time_us")),
        counted=sum(known("counted")),
        session_records=sum(known("session_records")),
        faults=reduce(or_, known("faults")),
        is_in_order=all(known("is_in_order")),
        first_topic=min(known("topic"), default=None),
        last_topic=max(known("topic"), default=None),
    )


def _timeline(rows: Sequence[Row], row_step_s: int) -> Timeline:
    """Sum up rows of `stretches.surveyed` of steps of this width, in as narrow ones as are few enough."""
    step_s = _step_s([row["begins_s"] for row in rows], row_step_s)
    records: Counter[int] = Counter()
    for row in rows:
        records[row["begins_s"] // step_s * step_s] += row["records"]
    return Timeline(step_s, {datetime.fromtimestamp(s, UTC): n for s, n in sorted(records.items())})


def _step_s(begins_s: Sequence[int], row_step_s: int) -> int:
    if not begins_s:
        return row_step_s
    needed_s = -(-(max(begins_s) - min(begins_s) + row_step_s) // TIMES_MAX)
    longest_s = TIME_STEPS_S[-1]
    fit = (step_s for step_s in TIME_STEPS_S if step_s >= max(needed_s, row_step_s))
    return next(fit, -(-needed_s // longest_s) * longest_s)
