"""
Runs the checks and collects their rows in the driver: at most ROWS_MAX of a summary, and NAMED_MAX a kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.audit import checks, clients, stretches
from pipeline.audit.checks import PrecedingRecord
from pipeline.audit.division import UNDIVIDED, Division
from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.places import second_places
from pipeline.audit.verdict import (
    AffectedRecord,
    ClientSessions,
    Finding,
    PartitionSummary,
    SessionGaps,
    Timeline,
)

NAMED_MAX = 100  # of each kind; the count is always complete
TIMES_MAX = 500  # of a timeline
TIME_STEPS_S = (60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""Steps of a timeline, and multiples of the last one."""

ROW_STEPS_S = (60, 600, 3600, 86_400)
"""Steps of the rows for it, each a divisor of the longer ones; the first with at most ROWS_MAX rows wins."""

ROWS_MAX = 200_000
"""About 100 MB of memory; a week of minutes of sixteen partitions is less."""


def summarize(
    checked: DataFrame,
    preceding: Mapping[int, PrecedingRecord],
    counted_ranges: Mapping[int, tuple[int, int]],
) -> tuple[list[PartitionSummary], Timeline]:
    """Read all records once, and return a summary of each partition and how many records came when."""
    return summarize_stretches(stretches.stretches(checked, counted_ranges), preceding)


def summarize_stretches(
    rows: DataFrame, preceding: Mapping[int, PrecedingRecord]
) -> tuple[list[PartitionSummary], Timeline]:
    """Return what `summarize` does, of rows of stretches.stretches."""
    linked = stretches.linked(rows, preceding)
    found: list[Row] = []
    for step_s in ROW_STEPS_S:
        summarized = stretches.summarized(linked, step_s)
        is_last = step_s == ROW_STEPS_S[-1]
        found = (summarized if is_last else summarized.limit(ROWS_MAX + 1)).collect()
        if len(found) <= ROWS_MAX:
            break
    return summaries_of([row.asDict() for row in found], step_s)


def summaries_of(rows: Sequence[Mapping[str, Any]], step_s: int) -> tuple[list[PartitionSummary], Timeline]:
    """Aggregate rows of stretches.summarized, whose steps are this wide."""
    partitions = groupby(sorted(rows, key=itemgetter("partition")), key=itemgetter("partition"))
    return [_summary(p, list(of_partition)) for p, of_partition in partitions], _timeline(rows, step_s)


def find_faults(
    checked: DataFrame,
    summaries: Sequence[PartitionSummary],
    preceding: Mapping[int, PrecedingRecord],
    division: Division = UNDIVIDED,
    *,
    outlives_retention: bool = False,
) -> dict[str, Finding]:
    """Return faults of records and of their order, by kind; costly unless the summaries prove the order."""
    is_behind = any(s.last_offset >= division.ends.get(s.partition, s.last_offset + 1) for s in summaries)
    if not is_behind and all(summary.is_in_order and not summary.faults for summary in summaries):
        return {}
    ordered = checks.check_order(checked, preceding, division, outlives_retention=outlives_retention)
    return collect_findings(checks.faulty(ordered))


def find_repeats(
    checked: DataFrame, linked: DataFrame | None, bounds: DedupeBounds, division: Division = UNDIVIDED
) -> dict[str, Finding]:
    """
    Return the events that are stored more than once, by kind.

    Args:
        checked: of checks.with_earlier_keys.
        linked: of places.places, with those of earlier audits; None without client sessions.
        bounds: how far back ids are remembered.
        division: what each partition's index counts.
    """
    found = list[DataFrame]()
    hashes = checks.repeated_hashes(checked)
    if not hashes.isEmpty():
        found.append(checks.repeats(checked, hashes, bounds, division))
    if linked is not None:
        found.append(second_places(linked, bounds, division))
    return collect_findings(reduce(DataFrame.unionByName, found)) if found else {}


def count_notices(summaries: Sequence[PartitionSummary]) -> dict[str, Finding]:
    """Return how many records are unproved or erased."""
    unproved = [(s.partition, s.unproved, s.first_unproved) for s in summaries]
    erased = [(s.partition, s.erased, s.first_erased) for s in summaries]
    return _counted(checks.UNPROVED, unproved) | _counted(checks.ERASED, erased)


def _counted(kind: str, partitions: Sequence[tuple[int, int, int | None]]) -> dict[str, Finding]:
    """Return a finding of each partition's number of records and the first offset."""
    first = [
        AffectedRecord(partition, offset, None, None, f"{records} records from this one on")
        for partition, records, offset in partitions
        if offset is not None
    ]
    return {kind: Finding(sum(records for _, records, _ in partitions), first)} if first else {}


def find_client_gaps(
    checked: DataFrame, summaries: Sequence[PartitionSummary]
) -> tuple[ClientSessions, dict[str, Finding]]:
    """Return the gaps of client sessions, and a notice with the newest record of those that lack most."""
    if not any(summary.session_records for summary in summaries):
        return ClientSessions(), {}
    whole = {summary.partition for summary in summaries if summary.first_seq == 0}
    sessions = clients.session_progress(checked, whole).persist(StorageLevel.DISK_ONLY)
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
    numbers = {name: int(number) for name, number in totals.asDict().items()}
    gaps = [_session_gaps(row) for row in rows]
    newest = [
        AffectedRecord(gap.partition, last["offset"], last["message_id"], last["source"], _lacks(gap))
        for gap, last in zip(gaps, (row["last"] for row in rows), strict=True)
    ]
    findings = {checks.CLIENT_GAP: Finding(numbers["with_gaps"], newest)} if newest else {}
    return ClientSessions(**numbers, worst=gaps), findings


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
    """Return what a session lacks, in the format of the header Gateway-Session-Missing."""
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in gap.ranges]
    listed = sum(last - first + 1 for first, last in gap.ranges)
    text = ",".join(ranges if listed == gap.missing else [*ranges, "..."])
    middle = ", known from the middle on" if gap.is_known_from_the_middle else ""
    return f"{gap.missing} missing: {text} (client {gap.client_hash}, session {gap.session_hash}{middle})"


def collect_findings(affected: DataFrame) -> dict[str, Finding]:
    """Return the number of rows of each kind, and the first NAMED_MAX of them."""
    of_kind = Window.partitionBy("kind")
    numbered = affected.select(
        "*",
        F.count("*").over(of_kind).alias("count"),
        F.row_number().over(of_kind.orderBy("partition", "offset")).alias("number"),
    )
    findings: dict[str, Finding] = {}
    for row in numbered.where(F.col("number") <= NAMED_MAX).orderBy("kind", "number").collect():
        finding = findings.setdefault(row["kind"], Finding(row["count"], []))
        finding.first.append(AffectedRecord(*(row[name] for name in AffectedRecord._fields)))
    return findings


def _summary(partition: int, rows: Sequence[Mapping[str, Any]]) -> PartitionSummary:
    """Aggregate rows of `stretches.summarized` of one partition."""

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
        unproved=sum(known("unproved")),
        first_unproved=min(known("first_unproved"), default=None),
        erased=sum(known("erased")),
        first_erased=min(known("first_erased"), default=None),
        faults=reduce(or_, known("faults")),
        is_in_order=all(known("is_in_order")),
        first_topic=min(known("topic"), default=None),
        last_topic=max(known("topic"), default=None),
    )


def _timeline(rows: Sequence[Mapping[str, Any]], row_step_s: int) -> Timeline:
    """Aggregate rows of `stretches.summarized` of one step, into at most TIMES_MAX steps."""
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
