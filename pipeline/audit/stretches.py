"""
Proves the order of a clean topic without comparing each record with the one before it.

    stretches    aggregates of records that follow one another: far fewer rows than records
    linked       each stretch compared with the one before it in its partition
    summarized   aggregates of stretches, which suffice for a clean topic

An order that is not proven here need not be wrong: checks.check_order then compares record with record.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.checks import PrecedingRecord, by_partition
from pipeline.transforms.clean_topic import minute_of

BLOCK_BITS = 6
"""A stretch stays within 64 offsets, so that one number holds a bit for each."""

LENGTH_MAX = 2**BLOCK_BITS

_MARKS = ("unproved", "erased")
_FIRST_MARKS = tuple(f"first_{name}" for name in _MARKS)


def stretches(checked: DataFrame, counted_ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
    """
    Aggregate records of one topic, partition and time whose lane_seq and offset have the same difference.

    A transaction of a gateway is one stretch, or a few.

    Args:
        checked: of checks.check_records.
        counted_ranges: offsets [start, end) that a reconciliation counts, by partition.

    Returns:
        topic, partition, timestamp, records, counted, faults (bits of all), first_offset, last_offset,
        first_seq, last_seq (null where lane_seq is), offset_count (how many different ones),
        session_records, unproved, erased, first_unproved and first_erased (their first offsets).
    """
    offset, lane_seq = F.col("offset"), F.col("lane_seq")
    alike = checked.groupBy(
        "topic",
        "partition",
        "timestamp",
        (lane_seq - offset).alias("ahead"),
        F.shiftright(offset, BLOCK_BITS).alias("block"),
    )
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), F.pmod(offset, F.lit(LENGTH_MAX)).cast("int"))
    return alike.agg(
        F.count("*").alias("records"),
        F.sum(_is_counted(counted_ranges).cast("int")).alias("counted"),
        F.bit_or("faults").alias("faults"),
        F.min(offset).alias("first_offset"),
        F.max(offset).alias("last_offset"),
        F.min(lane_seq).alias("first_seq"),
        F.max(lane_seq).alias("last_seq"),
        F.bit_count(F.bit_or(bit)).alias("offset_count"),
        F.count("client_hash").alias("session_records"),
        *(F.count_if(F.col(f"is_{name}")).alias(name) for name in _MARKS),
        *(F.min(F.when(F.col(f"is_{name}"), offset)).alias(f"first_{name}") for name in _MARKS),
    )


def linked(rows: DataFrame, preceding: Mapping[int, PrecedingRecord]) -> DataFrame:
    """
    Add `is_in_order`; if it holds for a whole partition, checks.check_order finds nothing there.

    Proof. A stretch has as many offsets as records, all different, without a gap, so in order of offset
    lane_seq grows by one, since their difference is constant; and time is constant. Stretches continue that
    if their offsets do not overlap, each begins one lane_seq after the one before, and none is older.

    Args:
        rows: of `stretches`.
        preceding: the record before the first one, by partition; any first record passes without it.
    """
    in_partition = Window.partitionBy("partition").orderBy("first_offset")

    def last(column: str, first: Mapping[int, object]) -> Column:
        own = F.lag(column).over(in_partition)
        return F.coalesce(own, by_partition(first, column, rows))

    compared = rows.select(
        "*",
        F.lag("last_offset").over(in_partition).alias("offset_before"),
        last("last_seq", {p: record.lane_seq for p, record in preceding.items()}).alias("seq_before"),
        last("timestamp", {p: record.timestamp for p, record in preceding.items()}).alias("time_before"),
    )
    records, first_offset, first_seq = F.col("records"), F.col("first_offset"), F.col("first_seq")
    conditions = (
        records == F.col("offset_count"),
        records == F.col("last_offset") - first_offset + 1,
        first_seq.isNotNull(),
        F.col("offset_before").isNull() | (F.col("offset_before") < first_offset),
        # seq_before + 1 could overflow.
        F.col("seq_before").isNull() | (first_seq - 1 == F.col("seq_before")),
        F.col("time_before").isNull() | (F.col("time_before") <= F.col("timestamp")),
    )
    is_in_order = F.lit(True)
    for condition in conditions:
        is_in_order = is_in_order & F.coalesce(condition, F.lit(False))
    return compared.withColumn("is_in_order", is_in_order)


def summarized(linked_stretches: DataFrame, step_s: int) -> DataFrame:
    """
    Aggregate stretches by topic, partition and step of time.

    Args:
        linked_stretches: of `linked`.
        step_s: width of a step.

    Returns:
        topic, partition, begins_s (of the step, since 1970), records, counted, session_records, unproved,
        erased, first_unproved, first_erased, first_offset, first_seq, last_offset, last_seq, last_time_us,
        faults, is_in_order.
    """
    minute_s = F.unix_seconds(minute_of(F.col("timestamp")))
    begins_s = minute_s - F.pmod(minute_s, F.lit(step_s))
    return linked_stretches.groupBy("topic", "partition", begins_s.alias("begins_s")).agg(
        *(F.sum(name).alias(name) for name in ("records", "counted", "session_records", *_MARKS)),
        *(F.min(name).alias(name) for name in ("first_offset", "first_seq", *_FIRST_MARKS)),
        *(F.max(name).alias(name) for name in ("last_offset", "last_seq")),
        F.unix_micros(F.max("timestamp")).alias("last_time_us"),
        F.bit_or("faults").alias("faults"),
        F.bool_and("is_in_order").alias("is_in_order"),
    )


def _is_counted(ranges: Mapping[int, tuple[int, int]]) -> Column:
    is_counted = F.lit(False)
    for partition, (start, end) in ranges.items():
        is_inside = (F.col("offset") >= start) & (F.col("offset") < end)
        is_counted = is_counted | ((F.col("partition") == partition) & is_inside)
    return is_counted
