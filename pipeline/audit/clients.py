"""
The missing sequences of client sessions, as DataFrame functions.

The rule is that of `GET /v1/sessions` (dedupe/decide/sessions.py): a sequence is missing if it is above all
that the client has acknowledged, below the highest stored one, and not stored. The header `gs` of a
session's first record holds the sequences stored before it; in an archive that began without that column,
the session is known from the middle on.
"""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dedupe.model.record import ABOVE_BYTES_MAX
from pipeline.transforms.clean_topic import unsigned

RANGES_MAX = 32
"""Of a session, as in the header Gateway-Session-Missing; the number of sequences is always complete."""

WATERMARK_BYTES = 8  # of `gs`; a bit for each sequence above it follows

_SESSION = ("client_hash", "session_hash")


def session_progress(checked: DataFrame, whole: Collection[int]) -> DataFrame:
    """
    Return the state of each client session after these records.

    Args:
        checked: of checks.check_records.
        whole: partitions whose first record is among them.

    Returns:
        client_hash, session_hash, partition, acknowledged_through, highest, missing (how many),
        ranges (the first RANGES_MAX: first and last), is_from_middle, and last: offset, message_id and
        source of the newest record.
    """
    records = checked.where(F.col("client_hash").isNotNull())
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
    is_listed = (F.col("missing") > 0) & (F.col("gap_number") <= RANGES_MAX)
    range_ = F.struct(F.col("first_missing").alias("first"), (F.col("sequence") - 1).alias("last"))
    return (
        counted.withColumn("gap_number", gap_number)
        .groupBy(*_SESSION)
        .agg(
            F.max("partition").alias("partition"),
            F.max("acknowledged_through").alias("acknowledged_through"),
            F.max(F.greatest("sequence", "done_of_all")).alias("highest"),
            F.sum("missing").alias("missing"),
            F.array_sort(F.collect_list(F.when(is_listed, range_))).alias("ranges"),
            F.bool_or("is_from_middle").alias("is_from_middle"),
            F.max_by("last", F.col("last.offset")).alias("last"),
        )
    )


def _stored_before(records: DataFrame) -> DataFrame:
    """Return the sequences stored before the first record of each session, and its watermark."""
    firsts = records.groupBy(*_SESSION).agg(
        F.first("partition").alias("partition"),
        F.min("sequence").alias("lowest"),
        F.min_by("gs", "offset").alias("gs"),
    )
    length = F.length("gs")
    is_known = F.coalesce(length.between(WATERMARK_BYTES, WATERMARK_BYTES + ABOVE_BYTES_MAX), F.lit(False))
    watermark = F.when(is_known, unsigned(F.substring("gs", 1, WATERMARK_BYTES)))
    states = firsts.select(
        *_SESSION,
        "partition",
        "gs",
        F.coalesce(watermark, F.col("lowest") - 1).alias("done"),
        (~is_known).alias("is_from_middle"),
        F.when(is_known, (length - WATERMARK_BYTES) * 8).otherwise(0).alias("bits"),
    )
    # Bit 0, in the last byte, is the sequence after the watermark; bit -1 is the watermark's own row.
    bits = states.withColumn("bit", F.explode(F.sequence(F.lit(-1), F.col("bits") - 1)))
    return bits.where((F.col("bit") < 0) | _is_set(F.col("bit"))).select(
        *_SESSION,
        "partition",
        "is_from_middle",
        "done",
        (F.col("done") + 1 + F.col("bit")).alias("sequence"),
    )


def _is_set(bit: Column) -> Column:
    """Whether a bit of `gs` is set, counted from its end."""
    byte = F.substr(F.col("gs"), F.length("gs") - F.floor(bit / 8).cast("int"), F.lit(1))
    return F.getbit(F.conv(F.hex(byte), 16, 10).cast("int"), F.pmod(bit, F.lit(8))) == 1
