"""
The content of an archive beside what it was made from: its values, and its topic.

    read_with_changes    the records of an archive, and which of its other columns do not follow from them
    unerased             its records of persons who were erased
    differing            its records whose content is not that of the same offset of the topic
"""

from collections.abc import Callable
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import ALTERED, FOREIGN, UNERASED
from pipeline.schema import DERIVED, LATER_COLUMNS, RECORD
from pipeline.sources.records import LakeSource, Offsets, Selection, from_archive, read_lake, within
from pipeline.transforms.clean_topic import archived
from pipeline.transforms.erased import Persons, in_archive, listed

_CONTENT = ("key", "value", "source", "gw")
_SHA = 256


def read_with_stored(spark: SparkSession, source: LakeSource, selection: Selection) -> DataFrame:
    """Return the records of an archive in schema.RECORD, and DERIVED but `value` as they are stored."""
    archive = read_lake(spark, source)
    others = [name for name in DERIVED if name in archive.columns and name != "value"]
    stored = F.struct(*others).alias("stored")
    records = archive.select("*", stored).transform(from_archive, "stored").transform(within, selection)
    return records.select(*RECORD.names, "stored.*")


def read_with_changes(
    spark: SparkSession, source: LakeSource, selection: Selection, later_from: Offsets | None = None
) -> DataFrame:
    """
    Return the records of an archive in schema.RECORD, with `changed`.

    `changed` has the names of DERIVED columns, separated by commas, that are not what `archive` computes from
    the record; null if all are. Columns that a table lacks are not compared.

    Args:
        spark: the session.
        source: the archive.
        selection: of its records.
        later_from: the first offset of each partition whose row must have schema.LATER_COLUMNS; one that is
            left out has no other rows. None if that is unknown: then any row may have none of them.
    """
    archive = read_lake(spark, source)
    derived = [name for name in DERIVED if name in archive.columns]
    stored = F.struct(*derived).alias("stored")
    records = archive.select("*", stored).transform(from_archive, "stored").transform(within, selection)
    computed = records.transform(archived, F.struct(*RECORD.names).alias("record"), "stored")
    is_older = _is_older(later_from, [name for name in LATER_COLUMNS if name in derived])
    differing = [
        F.when(~F.col(name).eqNullSafe(F.col("stored")[name]) & ~is_older(name), F.lit(name))
        for name in derived
    ]
    changed = F.concat_ws(", ", *differing)
    return computed.select("record.*", F.when(changed != "", changed).alias("changed"))


def _is_older(later_from: Offsets | None, later: list[str]) -> Callable[[str], Column]:
    """Return a function: whether a row need not have a column, since it was written before that came."""
    may_be_older = F.lit(later_from is None)
    for partition, offset in (later_from or {}).items():
        may_be_older |= (F.col("partition") == partition) & (F.col("offset") < offset)
    has_none = F.coalesce(*(F.col("stored")[name].cast("string") for name in later), F.lit(None)).isNull()
    return lambda name: may_be_older & has_none if name in later else F.lit(False)


def differing(archive: DataFrame, topic: DataFrame) -> DataFrame:
    """
    Return the records of an archive whose content is not that of the topic's record of this offset.

    The only check that finds who changed a record and computed its checksum anew. It reads the topic whole.

    Args:
        archive: schema.RECORD, of offsets that the topic still has.
        topic: schema.RECORD.

    Returns:
        kind, partition, offset, message_id, source, detail.
    """
    place = ["partition", "offset"]
    names = F.col("key").cast("string").alias("message_id")
    own = archive.select(
        *place, names, "source", "gs", _digest().alias("digest"), F.col("timestamp").alias("time")
    )
    theirs = topic.select(
        *place,
        F.col("gs").alias("topic_gs"),
        _digest().alias("topic_digest"),
        F.col("timestamp").alias("topic_time"),
    )
    both = own.join(theirs, place, "left")
    is_known = F.col("topic_digest").isNotNull()
    # An archive that began without the column gs has none of old records.
    is_equal = (
        (F.col("digest") == F.col("topic_digest"))
        & (F.col("time") == F.col("topic_time"))
        & (F.col("gs").isNull() | F.col("gs").eqNullSafe(F.col("topic_gs")))
    )
    wrong = both.where(~is_known | ~is_equal)
    return wrong.select(
        F.when(is_known, ALTERED).otherwise(FOREIGN).alias("kind"),
        *place,
        "message_id",
        "source",
        F.when(is_known, "its content is not that of the topic")
        .otherwise("the topic has no record of this offset")
        .alias("detail"),
    )


def unerased(archive: DataFrame, persons: Persons) -> DataFrame:
    """Return the records of an archive that are of erased persons, as `differing` does."""
    records = archive.select(*RECORD.names)
    found = records.mapInArrow(partial(listed, in_archive, persons), records.schema)
    return found.select(
        F.lit(UNERASED).alias("kind"),
        "partition",
        "offset",
        F.col("key").cast("string").alias("message_id"),
        "source",
        F.lit("the job erase has not been there since").alias("detail"),
    )


def _digest() -> Column:
    """Return a digest of the content of a record, null columns included."""
    parts: list[Column] = []
    for name in _CONTENT:
        binary = F.col(name).cast("binary")
        size = F.coalesce(F.octet_length(binary), F.lit(-1))
        parts += [F.concat(size.cast("string"), F.lit(":")).cast("binary"), F.coalesce(binary, F.lit(b""))]
    return F.sha2(F.concat(*parts), _SHA)
