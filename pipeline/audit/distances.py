"""How many records the index of a partition counts between two of its records, as a DataFrame function."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.division import Division

_INHERITED = (
    "partition int, since bigint, until bigint, source int, start bigint, end bigint, "
    "shift bigint, lane_seq_min bigint"
)


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
