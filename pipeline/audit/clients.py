"""
What clients lost on their side: the sequences of their sessions that are missing, as DataFrame functions.

The rule is that of `GET /v1/sessions` (dedupe/sessions.py): missing is what lies above all that the client
has acknowledged, below the highest sequence stored, and is not stored. It follows from the records
themselves. What was stored before those that are read, a session's first record says (header `gs`); in an
archive that was begun without that header, such a session is known from the middle on.
"""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dedupe.record import ABOVE_BYTES_MAX
from pipeline.transforms.clean_topic import unsigned

RANGES_MAX = 32
"""Of a session, as in the header Gateway-Session-Missing; the number of sequences is always told."""

WATERMARK_BYTES = 8  # of `gs`; bits of what is stored above it follow

_SESSION = ("client_hash", "session_hash")


def standings(examined_records: DataFrame, whole: Collection[int]) -> DataFrame:
    """
    Return how each client session stands after these records.

    Args:
        examined_records: of checks.examined.
        whole: partitions whose very first record is among them.

    Returns:
        client_hash, session_hash, partition, acknowledged_through, highest, missing (how many),
        ranges (the first RANGES_MAX: first and last), is_from_middle, and last: offset, message_id and
        source of the newest record.
    """
    records = examined_records.where(F.col("client_hash").isNotNull())
    own = records.select(
        *_SESSION,
        "partition",
        "sequence",
        "acknowledged_through",
        F.col("acknowledged_through").alias("done"),
        F.lit(False).alias("is_from_middle"),
        F.struct("offset", "message_id", "source").alias("last"),
    )
    earlier = _stored_before(records.where(~F.col("partition").isin(list(whole))))
    of_session = Window.partitionBy(*_SESSION)
    ascending = of_session.orderBy("sequence")
    done = F.max("done").over(of_session)
    before = F.greatest(F.lag("sequence").over(ascending), done)
    placed = own.unionByName(earlier, allowMissingColumns=True).select(
        "*", done.alias("done_of_all"), (before + 1).alias("first_missing")
    )
    missing = F.greatest(F.col("sequence") - F.col("first_missing"), F.lit(0))
    counted = placed.withColumn("missing", missing)
    gap_number = F.sum((F.col("missing") > 0).cast("int")).over(
        ascending.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    is_told = (F.col("missing") > 0) & (F.col("gap_number") <= RANGES_MAX)
    range_ = F.struct(F.col("first_missing").alias("first"), (F.col("sequence") - 1).alias("last"))
    return (
        counted.withColumn("gap_number", gap_number)
        .groupBy(*_SESSION)
        .agg(
            F.max("partition").alias("partition"),
            F.max("acknowledged_through").alias("acknowledged_through"),
            F.max(F.greatest("sequence", "done_of_all")).alias("highest"),
            F.sum("missing").alias("missing"),
            F.array_sort(F.collect_list(F.when(is_told, range_))).alias("ranges"),
            F.bool_or("is_from_middle").alias("is_from_middle"),
            F.max_by("last", F.col("last.offset")).alias("last"),
        )
    )


def _stored_before(records: DataFrame) -> DataFrame:
    """Return what the first record of each session says: sequences stored, and up to which all are."""
    firsts = records.groupBy(*_SESSION).agg(
        F.first("partition").alias("partition"),
        F.min("sequence").alias("lowest"),
        F.min_by("gs", "offset").alias("gs"),
    )
    length = F.length("gs")
    is_told = F.coalesce(length.between(WATERMARK_BYTES, WATERMARK_BYTES + ABOVE_BYTES_MAX), F.lit(False))
    watermark = F.when(is_told, unsigned(F.substring("gs", 1, WATERMARK_BYTES)))
    known = firsts.select(
        *_SESSION,
        "partition",
        "gs",
        F.coalesce(watermark, F.col("lowest") - 1).alias("done"),
        (~is_told).alias("is_from_middle"),
        F.when(is_told, (length - WATERMARK_BYTES) * 8).otherwise(0).alias("bits"),
    )
    # Bit 0 is that of the sequence after the watermark, in the last byte; none is the watermark's own row.
    places = known.withColumn("place", F.explode(F.sequence(F.lit(-1), F.col("bits") - 1)))
    return places.where((F.col("place") < 0) | _is_set(F.col("place"))).select(
        *_SESSION,
        "partition",
        "is_from_middle",
        "done",
        (F.col("done") + 1 + F.col("place")).alias("sequence"),
    )


def _is_set(place: Column) -> Column:
    """Whether a bit of `gs` is set, counted from its end."""
    byte = F.substr(F.col("gs"), F.length("gs") - F.floor(place / 8).cast("int"), F.lit(1))
    return F.getbit(F.conv(F.hex(byte), 16, 10).cast("int"), F.pmod(place, F.lit(8))) == 1
