"""Whether a gateway may have forgotten an id that is stored again, as DataFrame functions."""

from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.audit.division import Division, Period

_INHERITED = (
    "partition int, since bigint, until bigint, source int, start bigint, end bigint, "
    "shift bigint, lane_seq_min bigint"
)


class DedupeBounds(NamedTuple):
    """How far back a gateway remembers ids: both bounds hold, and None is unknown."""

    window: timedelta | None = None
    keys_max: int | None = None  # in one partition; with `periods` in all
    periods: tuple[Period, ...] = ()
    """How many partitions there were, and when; empty if their number never changed, as far as is known."""

    @property
    def keys_max_of_partition(self) -> int | None:
        """How many keys a partition of now remembers, once what was before a plan is too old."""
        if self.keys_max is None or not self.periods:
            return self.keys_max
        return self.keys_max // max(1, self.periods[-1].partitions)


def is_forgotten(bounds: DedupeBounds) -> Column:
    """Whether a known bound lets a gateway accept the copy as a new event; of with_keys_between."""
    is_forgotten = F.lit(False)
    if bounds.window is not None:
        age = F.col("timestamp") - F.col("earlier_timestamp")
        is_forgotten = is_forgotten | (age >= F.lit(bounds.window))
    if bounds.keys_max is not None:
        is_beyond = F.col("keys_between") > _keys_max_then(bounds, bounds.keys_max)
        is_forgotten = is_forgotten | F.coalesce(is_beyond, F.lit(False))
    return is_forgotten


def _keys_max_then(bounds: DedupeBounds, keys_max: int) -> Column:
    """
    Return how many keys a partition remembered when a record was written.

    That is the share of the smallest number of partitions within its window: a plan lets none forget early.
    """
    if not bounds.periods:
        return F.lit(keys_max)
    time_ms, shares = F.unix_millis("timestamp"), [F.lit(None).cast("bigint")]
    for since_ms, until_ms, partitions in bounds.periods:
        is_within = time_ms >= since_ms
        if bounds.window is not None:
            is_within &= time_ms - round(bounds.window.total_seconds() * 1000) <= until_ms
        shares.append(F.when(is_within, F.lit(keys_max // max(1, partitions))))
    return F.greatest(*shares)


def with_keys_between(pairs: DataFrame, division: Division) -> DataFrame:
    """
    Return pairs of records with keys_between, null where no index counts both.

    It is never more than the gateway counts: numbers jump where a partition was given slots, and what it
    inherits counts as its lineage says (dedupe/decide/lineage.py). So no repeat is excused by a jump.

    Args:
        pairs: partition, offset and lane_seq, and those of the earlier record as earlier_partition and so on.
        division: what each partition's index counts; if it does not say so, each counts its own records.
    """
    lane_seq, earlier = F.col("lane_seq"), F.col("earlier_lane_seq")
    if not division.inherited:
        is_same_lane = F.col("partition") == F.col("earlier_partition")
        return pairs.withColumn("keys_between", F.when(is_same_lane, F.try_subtract(lane_seq, earlier)))
    parts = pairs.sparkSession.createDataFrame(list(division.inherited), _INHERITED).alias("part")
    offset, earlier_offset = F.col("offset"), F.col("earlier_offset")
    is_counted = (
        (F.col("pair.partition") == F.col("part.partition"))
        & (offset >= F.col("since"))
        & (offset < F.col("until"))
        & (F.col("earlier_partition") == F.col("part.source"))
        & (earlier_offset >= F.col("start"))
        & (earlier_offset < F.col("end"))
    )
    shifted = F.try_add(earlier, F.col("shift"))
    counted_as = F.when(shifted.isNotNull(), F.greatest(shifted, F.col("lane_seq_min")))
    joined = pairs.alias("pair").join(F.broadcast(parts), is_counted, "left")
    return joined.select("pair.*", F.try_subtract(lane_seq, counted_as).alias("keys_between"))
