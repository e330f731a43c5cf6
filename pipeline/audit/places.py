"""
Events of client sessions that are stored in two places, as DataFrame functions.

    places         a row for each of a record's links (pipeline/audit/links.py)
    second_places  the records whose event is stored before in another place
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.checks import ALLOWED_REPEAT, REPEATED, SECOND_PLACE, affected
from pipeline.audit.division import UNDIVIDED, Division
from pipeline.audit.forgotten import DedupeBounds, is_forgotten, with_keys_between


def places(records: DataFrame) -> DataFrame:
    """Return `link` and `is_id` of each link of a record, with its other columns."""
    return records.select("*", F.explode("links").alias("tie")).select("*", "tie.link", "tie.is_id")


def second_places(linked: DataFrame, bounds: DedupeBounds, division: Division = UNDIVIDED) -> DataFrame:
    """
    Return each new record whose event is stored before in another place.

    Args:
        linked: of `places`, with `is_new`.
        bounds: how far back the gateway remembers ids.
        division: what each partition's index counts.

    Returns:
        The columns of checks.affected.
    """
    pairs = linked.groupBy("link").agg(
        (F.bool_or("is_id") & (F.min("event_key") != F.max("event_key"))).alias("are_places")
    )
    several = linked.join(pairs.where("are_places").select("link"), "link", "left_semi")
    before = (
        Window.partitionBy("link")
        .orderBy("timestamp", "partition", "offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    place = F.struct("event_key", "timestamp", "partition", "offset", "lane_seq")
    any_before = F.last(place).over(before)
    moved_before = F.last(F.when(F.col("is_id"), place), ignorenulls=True).over(before)
    compared = several.select(
        "*", F.when(F.col("is_id"), any_before).otherwise(moved_before).alias("earlier")
    ).where(F.col("is_new") & (F.col("earlier.event_key") != F.col("event_key")))
    newest_first = Window.partitionBy("partition", "offset").orderBy(F.desc("earlier.timestamp"), "link")
    found = compared.select(
        "*",
        F.row_number().over(newest_first).alias("number"),
        *(
            F.col(f"earlier.{name}").alias(f"earlier_{name}")
            for name in ("timestamp", "partition", "offset", "lane_seq")
        ),
    ).where("number = 1")
    found = found.transform(with_keys_between, division)
    return affected(
        found,
        F.when(is_forgotten(bounds), ALLOWED_REPEAT)
        .when(F.lit(None in bounds), REPEATED)
        .otherwise(SECOND_PLACE),
        F.concat(
            F.lit("the same client's event is in partition "),
            "earlier.partition",
            F.lit(" at offset "),
            "earlier.offset",
        ),
    )
