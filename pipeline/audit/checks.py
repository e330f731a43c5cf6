"""
What a clean topic must look like, as DataFrame functions: each record that does not is named.

    examined    each record by itself (pipeline/audit/rules.py)
    chained     and by those before it in its partition, where pipeline/audit/stretches.py proves no order
    violations, repeats, notices    who is to be named

Offsets have gaps, one a transaction, so nothing here is concluded from them: lane_seq tells what is
missing.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dedupe.record import VERSION as VERSION_READ
from pipeline.audit.rules import documents, flaw, is_of_its_key
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES, decoded, routed_partition

FOREIGN = "foreign"
VERSION = "version"
VALUE = "value"
WRONG_PARTITION = "wrong_partition"
GAP = "gap"
ORDER = "order"
TIME_ORDER = "time_order"
RENUMBERED = "renumbered"
DUPLICATE = "duplicate"
CONFLICT = "conflict"
WRONG_KEY = "wrong_key"
MISSING = "missing"
NOT_ARCHIVED = "not_archived"
UNJUDGED = "unjudged"
REPEATED = "repeated"
ALLOWED_REPEAT = "allowed_repeat"
CLIENT_GAP = "client_gap"
OUTSIDE_RETENTION = "outside_retention"

VIOLATIONS = {
    FOREIGN: "no gateway wrote it",
    VERSION: f"its record version is not {VERSION_READ}",
    VALUE: "its value is not the JSON of the event that its key names",
    WRONG_PARTITION: "its key belongs into another partition",
    GAP: "records before it are missing: lane_seq jumps",
    ORDER: "its lane_seq is not larger than those before it",
    TIME_ORDER: "its timestamp is smaller than those before it",
    DUPLICATE: "its event is stored before, within the window",
    CONFLICT: "its event is stored before with other content, within the window",
    WRONG_KEY: "its key or partition does not follow from the identity secret",
    MISSING: "the archive lacks records of these offsets",
}
"""What breaks the gateway's promise, and what is told about it."""

OPEN_QUESTIONS = {
    REPEATED: "its event is stored before; whether that is allowed, --stats tell "
    "(or --window and --index-keys-max)",
}
"""What may break it, so that there is no verdict."""

NOTICES = {
    RENUMBERED: "its lane_seq goes on at its offset, as after retention has emptied the partition",
    ALLOWED_REPEAT: "its event is stored before, but further back than ids are remembered",
    NOT_ARCHIVED: "the topic holds records from here on that are not archived yet",
    UNJUDGED: "retention deleted these offsets before an audit came",
    CLIENT_GAP: "its client session lacks sequences: the client lost these events, or has yet to send them",
    OUTSIDE_RETENTION: "it is older than the retention",
}
"""What is worth knowing, but no fault of the gateway's."""

_OWN_FLAGS = (FOREIGN, VERSION, VALUE, WRONG_PARTITION)
_CHAIN_FLAGS = (GAP, ORDER, TIME_ORDER, RENUMBERED)
_FLAGS = (*_OWN_FLAGS, *_CHAIN_FLAGS)
KEY_COLUMNS = ("hash", "event_key", "fingerprint", "partition", "offset", "timestamp", "lane_seq")
"""What must be remembered of a record to know its copies."""

_NAMED = ("kind", "partition", "offset", "message_id", "source", "detail")


class Promise(NamedTuple):
    """How far back a gateway remembers ids: both bounds hold, and None is not known."""

    window: timedelta | None = None
    keys_max: int | None = None  # in one partition


class Place(NamedTuple):
    """The last record of a partition that was judged before."""

    offset: int
    lane_seq: int
    timestamp: datetime | None


BEFORE_FIRST = Place(-1, -1, None)
"""Of a partition that is read from its very first offset on."""


def examined(records: DataFrame, partitions: int | None) -> DataFrame:
    """
    Judge each record by itself.

    Args:
        records: schema.RECORD.
        partitions: how many the topic has; None if that is not known.

    Returns:
        topic, partition, offset, timestamp, message_id, source, flaw, event_key, fingerprint,
        lane_seq, client_hash, session_hash, sequence, acknowledged_through, gs, expected_partition (null if
        it is this one), hash, and `faults`, the kinds of _OWN_FLAGS as bits.
    """
    is_readable = (F.length("gw") >= BASE_HEADER_BYTES) & (F.col("version") == VERSION_READ)
    own = (
        records.transform(decoded)
        .withColumn("documents", documents())
        .select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            F.col("key").cast("string").alias("message_id"),
            "source",
            flaw().alias("flaw"),
            (F.col("version") != VERSION_READ).alias("is_other_version"),
            is_of_its_key(F.col("documents")).alias("is_of_its_key"),
            *(
                F.when(is_readable, F.col(name)).alias(name)
                for name in (
                    "event_key",
                    "fingerprint",
                    "lane_seq",
                    "client_hash",
                    "session_hash",
                    "sequence",
                    "acknowledged_through",
                    "gs",
                )
            ),
        )
    )
    routed = F.lit(None).cast("bigint")
    if partitions is not None:
        routed = routed_partition(F.col("event_key"), F.col("client_hash"), partitions)
    judged = own.select("*", F.nullif(routed, F.col("partition")).alias("expected_partition"))
    is_other_version = F.coalesce(F.col("is_other_version"), F.lit(False))
    conditions = {
        VERSION: is_other_version,
        FOREIGN: F.col("flaw").isNotNull() & ~is_other_version,
        VALUE: F.col("flaw").isNull() & ~F.col("is_of_its_key"),
        WRONG_PARTITION: F.col("expected_partition").isNotNull(),
    }
    return judged.select("*", F.xxhash64("event_key").alias("hash"), _bits(conditions).alias("faults")).drop(
        "is_other_version", "is_of_its_key"
    )


def chained(
    examined_records: DataFrame, before: Mapping[int, Place], *, outlives_retention: bool = False
) -> DataFrame:
    """
    Judge each record by those before it in its partition.

    Args:
        examined_records: of `examined`.
        before: by partition, what came before the first record; without it that one begins the chain.
        outlives_retention: whether these records may have left their topic before later ones came.

    Returns:
        What `examined` does, with the kinds of _CHAIN_FLAGS in `faults`, and seq_before,
        offset_before and time_before: the largest of the partition so far, null at first.
    """
    earlier = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)

    def largest(column: str, first: Mapping[int, Any]) -> Column:
        return F.coalesce(F.max(column).over(earlier), by_partition(first, column, examined_records))

    compared = examined_records.select(
        "*",
        largest("lane_seq", {p: place.lane_seq for p, place in before.items()}).alias("seq_before"),
        largest("offset", {p: place.offset for p, place in before.items()}).alias("offset_before"),
        largest("timestamp", {p: place.timestamp for p, place in before.items()}).alias("time_before"),
    )
    lane_seq, seq_before, offset = F.col("lane_seq"), F.col("seq_before"), F.col("offset")
    # A missing record took an offset, too. Where lane_seq advances by more than offsets do, none is
    # missing: a gateway that finds its partition emptied by retention goes on at the log's end.
    is_renumbered = (
        F.lit(outlives_retention)
        & (lane_seq - offset > seq_before - F.col("offset_before"))
        & (lane_seq <= offset)
    )
    is_further = lane_seq - 1 > seq_before  # the other way round, the largest lane_seq has no next one
    conditions = {
        GAP: is_further & ~is_renumbered,
        ORDER: lane_seq <= seq_before,
        TIME_ORDER: F.col("timestamp") < F.col("time_before"),
        RENUMBERED: is_further & is_renumbered,
    }
    faults = F.col("faults").bitwiseOR(_bits(conditions))
    return compared.withColumn("faults", faults)


def with_known(examined_records: DataFrame, known: DataFrame | None) -> DataFrame:
    """Return these records and those of earlier audits (KEY_COLUMNS), which are not named again."""
    own = examined_records.withColumn("is_new", F.lit(True))
    if known is None:
        return own
    return own.unionByName(known.withColumn("is_new", F.lit(False)), allowMissingColumns=True)


def repeated_hashes(examined_records: DataFrame) -> DataFrame:
    """Return `hash` of each event key that is stored more than once, and hardly any other: eight bytes do."""
    keyed = examined_records.where(F.col("event_key").isNotNull())
    hashes = keyed.groupBy("hash").agg(F.count("*").alias("copies"))
    return hashes.where(F.col("copies") > 1).select("hash")


def repeats(examined_records: DataFrame, hashes: DataFrame, promise: Promise) -> DataFrame:
    """Name every copy of an event after its first, anywhere in the topic: a violation, allowed, or open."""
    copies = examined_records.where(F.col("event_key").isNotNull()).join(hashes, "hash", "left_semi")
    of_event = Window.partitionBy("event_key").orderBy("timestamp", "partition", "offset")
    first = {name: F.first(name).over(of_event) for name in ("fingerprint", "partition", "offset")}
    compared = copies.select(
        "*",
        *(
            F.lag(name).over(of_event).alias(f"earlier_{name}")
            for name in ("timestamp", "partition", "lane_seq")
        ),
        *(column.alias(f"first_{name}") for name, column in first.items()),
    ).where(F.col("is_new") & F.col("earlier_timestamp").isNotNull())
    is_same = F.col("fingerprint") == F.col("first_fingerprint")
    return _named(
        compared,
        F.when(_is_forgotten(promise), ALLOWED_REPEAT)
        .when(F.lit(None in promise), REPEATED)
        .when(is_same, DUPLICATE)
        .otherwise(CONFLICT),
        F.concat(
            F.lit("the first is in partition "), "first_partition", F.lit(" at offset "), "first_offset"
        ),
    )


def faulty(chained_records: DataFrame) -> DataFrame:
    """Name every record with a fault of its own or of its place: kind, place, message_id, source, detail."""
    details = {
        FOREIGN: F.col("flaw"),
        VERSION: F.lit(""),
        VALUE: F.lit(""),
        WRONG_PARTITION: F.concat(F.lit("belongs into partition "), F.col("expected_partition")),
        GAP: F.concat(
            (F.col("lane_seq") - 1 - F.col("seq_before")).cast("string"),
            F.lit(" missing: lane_seq "),
            F.col("lane_seq"),
            F.when(F.col("seq_before") < 0, " is the first").otherwise(
                F.concat(F.lit(" follows "), F.col("seq_before"))
            ),
        ),
        ORDER: F.concat(F.lit("lane_seq "), F.col("lane_seq"), F.lit(" after "), F.col("seq_before")),
        TIME_ORDER: F.concat(F.col("timestamp").cast("string"), F.lit(" after "), F.col("time_before")),
        RENUMBERED: F.concat(F.lit("lane_seq "), F.col("lane_seq"), F.lit(" after "), F.col("seq_before")),
    }
    found = [
        F.when(
            F.col("faults").bitwiseAND(1 << bit) != 0,
            F.struct(F.lit(kind).alias("kind"), details[kind].alias("detail")),
        )
        for bit, kind in enumerate(_FLAGS)
    ]
    with_fault = chained_records.where(F.col("faults") != 0)
    each = with_fault.select("*", F.explode(F.array_compact(F.array(*found))).alias("fault"))
    return _named(each, F.col("fault.kind"), F.col("fault.detail"))


def outside_retention(examined_records: DataFrame, retention: timedelta) -> DataFrame:
    """Name every record older than the retention, by the newest record's time."""
    newest = examined_records.agg(F.max("timestamp").alias("newest"))
    old = examined_records.crossJoin(newest).where(F.col("timestamp") < F.col("newest") - F.lit(retention))
    return _named(old, F.lit(OUTSIDE_RETENTION), F.concat(F.lit("of "), F.col("timestamp").cast("string")))


def _is_forgotten(promise: Promise) -> Column:
    """Whether one of the bounds that are known lets a gateway take the copy for a new event."""
    is_forgotten = F.lit(False)
    if promise.window is not None:
        age = F.col("timestamp") - F.col("earlier_timestamp")
        is_forgotten = is_forgotten | (age >= F.lit(promise.window))
    if promise.keys_max is not None:
        newer = F.col("lane_seq") - F.col("earlier_lane_seq")
        is_same_lane = F.col("partition") == F.col("earlier_partition")
        is_forgotten = is_forgotten | F.coalesce(is_same_lane & (newer > promise.keys_max), F.lit(False))
    return is_forgotten


def _bits(conditions: Mapping[str, Column]) -> Column:
    """Return the kinds whose condition holds as bits; one that is null does not."""
    bits = F.lit(0)
    for kind, condition in conditions.items():
        bits = bits.bitwiseOR(F.when(condition, 1 << _FLAGS.index(kind)).otherwise(0))
    return bits


def by_partition(values: Mapping[int, Any], column: str, like: DataFrame) -> Column:
    """Return each partition's value as a column of the type of `column`; null where there is none."""
    known = {partition: value for partition, value in values.items() if value is not None}
    found = F.lit(None)
    if known:
        pairs = [F.lit(item) for pair in known.items() for item in pair]
        found = F.create_map(*pairs)[F.col("partition")]
    return found.cast(like.schema[column].dataType)


def _named(records: DataFrame, kind: Column, detail: Column) -> DataFrame:
    # Bytes that are no UTF-8 can only come from a foreign record, and must still be shown.
    message_id = F.make_valid_utf8("message_id")
    return records.select(
        kind.alias("kind"),
        "partition",
        "offset",
        message_id.alias("message_id"),
        F.make_valid_utf8("source").alias("source"),
        detail.alias("detail"),
    ).select(*_NAMED)
