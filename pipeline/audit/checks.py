"""
The checks of an audit, as DataFrame functions; each returns the records that fail.

    check_records                        each record by itself (pipeline/audit/rules.py)
    check_order                          each record against those before it in its partition
    repeats, faulty, outside_retention   the records to report

Offsets have gaps, one for each transaction's marker, so lane_seq alone shows which records are missing.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dedupe.model.record import VERSION as VERSION_READ
from pipeline.audit.division import UNDIVIDED, Division, Jump
from pipeline.audit.forgotten import DedupeBounds, is_forgotten, with_keys_between
from pipeline.audit.links import links
from pipeline.audit.rules import documents, flaw, has_checksum, is_as_written, is_erased, is_of_its_key
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES, decoded, routed_partition

FOREIGN = "foreign"
VERSION = "version"
VALUE = "value"
ALTERED = "altered"
WRONG_PARTITION = "wrong_partition"
GAP = "gap"
ORDER = "order"
TIME_ORDER = "time_order"
RENUMBERED = "renumbered"
DUPLICATE = "duplicate"
CONFLICT = "conflict"
SECOND_PLACE = "second_place"
WRONG_KEY = "wrong_key"
MISSING = "missing"
LOST = "lost"
LOST_OR_EXPIRED = "lost_or_expired"
NOT_READ = "not_read"
NOT_ARCHIVED = "not_archived"
UNJUDGED = "unjudged"
REPEATED = "repeated"
ALLOWED_REPEAT = "allowed_repeat"
CLIENT_GAP = "client_gap"
OUTSIDE_RETENTION = "outside_retention"
UNPROVED = "unproved"
ERASED = "erased"
UNERASED = "unerased"
OTHER_LOG = "other_log"
IN_EARLIER_LOG = "in_earlier_log"

VIOLATIONS = {
    FOREIGN: "no gateway wrote it",
    VERSION: f"its record version is not {VERSION_READ}",
    VALUE: "its value is not the JSON of the event of its key",
    ALTERED: "it was changed after it was written",
    WRONG_PARTITION: "its key belongs to another partition",
    GAP: "records before it are missing: lane_seq jumps",
    ORDER: "its lane_seq is not larger than those before it",
    TIME_ORDER: "its timestamp is smaller than those before it",
    DUPLICATE: "its event is stored before, within the window",
    CONFLICT: "its event is stored before with other content, within the window",
    SECOND_PLACE: "its event is stored before in another place of its client's sessions, within the window",
    WRONG_KEY: "its key or partition does not follow from the identity secret",
    MISSING: "the archive lacks records of these offsets",
    UNERASED: "it is of a person on the list of erasures",
    LOST: "an event of the input is neither stored nor in quarantine",
}
"""Kinds that break the gateway's promise."""

OPEN_QUESTIONS = {
    REPEATED: "its event is stored before; whether that is allowed depends on --stats "
    "(or --window and --index-keys-max)",
    LOST_OR_EXPIRED: "an event of the input is neither stored nor in quarantine, "
    "but may have been, since the topic's first records have expired",
}
"""Kinds that may break it, so that there is no verdict."""

NOTICES = {
    RENUMBERED: "its lane_seq continues at its offset, as after retention has emptied the partition",
    ALLOWED_REPEAT: "its event is stored before, but further back than ids are remembered",
    NOT_ARCHIVED: "the topic holds records from here on that are not archived yet",
    NOT_READ: "the gateway has not read the input from here on yet",
    UNJUDGED: "retention deleted these offsets before an audit read them",
    CLIENT_GAP: "its client session lacks sequences: the client lost these events, or will still send them",
    OUTSIDE_RETENTION: "it is older than the retention",
    UNPROVED: "it has no checksum, so its content is unproved: an earlier gateway wrote it",
    ERASED: "its content was erased, as it says itself",
    OTHER_LOG: "it is of another log, which --epoch audits by itself",
    IN_EARLIER_LOG: "its event is in an earlier log of the archive, too, within the window: the topic was "
    "copied or replayed, or its client has sent it to both",
}
"""Kinds to report that are no fault of the gateway."""

_OWN_FLAGS = (FOREIGN, VERSION, VALUE, ALTERED, WRONG_PARTITION)
_ORDER_FLAGS = (GAP, ORDER, TIME_ORDER, RENUMBERED)
_FLAGS = (*_OWN_FLAGS, *_ORDER_FLAGS)
KEY_COLUMNS = ("hash", "event_key", "fingerprint", "partition", "offset", "timestamp", "lane_seq", "links")
"""The columns of a record that later audits need to recognize its copies."""

_HEADER_COLUMNS = (
    *("event_key", "fingerprint", "lane_seq"),
    *("client_hash", "session_hash", "sequence", "acknowledged_through", "gs"),
)
_AFFECTED = ("kind", "partition", "offset", "message_id", "source", "detail")


class PrecedingRecord(NamedTuple):
    """The last record of a partition before those that an audit reads."""

    offset: int
    lane_seq: int
    timestamp: datetime | None


BEFORE_FIRST = PrecedingRecord(-1, -1, None)
"""Of a partition that is read from its first offset on."""


def check_records(records: DataFrame, partitions: int | None) -> DataFrame:
    """
    Check each record by itself.

    Args:
        records: schema.RECORD, and `changed` if columns were compared (pipeline/audit/columns.py).
        partitions: how many the topic began with; None if that is unknown. Each that was divided off since
            has a multiple of that between its number and that of its first ancestor.

    Returns:
        topic, partition, offset, timestamp, message_id, source, flaw, event_key, fingerprint,
        lane_seq, client_hash, session_hash, sequence, acknowledged_through, gs, links (of links.links),
        expected_partition (null if it is this one), altered (what was changed, or null), is_unproved (no
        checksum), is_erased, hash, and `faults`, the kinds of _OWN_FLAGS as bits.
    """
    is_readable = (F.length("gw") >= BASE_HEADER_BYTES) & (F.col("version") == VERSION_READ)
    changed = F.concat(F.lit("these columns do not follow from its value: "), F.col("changed"))
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
            F.when(is_readable, links(F.get("documents", F.lit(0))["timestamp"].isNotNull())).alias("links"),
            is_as_written().alias("is_as_written"),
            (changed if "changed" in records.columns else F.lit(None)).cast("string").alias("changed"),
            is_erased(F.col("documents")).alias("is_erased"),
            (is_readable & ~has_checksum() & ~is_erased(F.col("documents"))).alias("is_unproved"),
            *(F.when(is_readable, F.col(name)).alias(name) for name in _HEADER_COLUMNS),
        )
    )
    routed = F.lit(None).cast("bigint")
    if partitions is not None:
        routed = routed_partition(F.col("event_key"), F.col("client_hash"), partitions)
    is_other_version = F.coalesce(F.col("is_other_version"), F.lit(False))
    is_whole = F.col("flaw").isNull() & ~is_other_version
    judged = own.select(
        "*",
        F.nullif(routed, F.col("partition") % (partitions or 1)).alias("expected_partition"),
        F.when(is_whole & ~F.col("is_as_written"), "its content differs from its checksum")
        .when(is_whole, F.col("changed"))
        .alias("altered"),
    )
    conditions = {
        VERSION: is_other_version,
        FOREIGN: F.col("flaw").isNotNull() & ~is_other_version,
        VALUE: is_whole & F.col("is_as_written") & ~F.col("is_of_its_key"),
        ALTERED: F.col("altered").isNotNull(),
        WRONG_PARTITION: F.col("expected_partition").isNotNull(),
    }
    return judged.select("*", F.xxhash64("event_key").alias("hash"), _bits(conditions).alias("faults")).drop(
        "is_other_version", "is_of_its_key", "is_as_written", "changed"
    )


def check_order(
    checked: DataFrame,
    preceding: Mapping[int, PrecedingRecord],
    division: Division = UNDIVIDED,
    *,
    outlives_retention: bool = False,
) -> DataFrame:
    """
    Check each record against those before it in its partition.

    Args:
        checked: of check_records.
        preceding: the record before the first one, by partition; any first record passes without it.
        division: where numbers go on behind a gap that is none, and where partitions end.
        outlives_retention: whether these records may have left their topic before later ones came.

    Returns:
        The columns of check_records, with the kinds of _ORDER_FLAGS in `faults`, and seq_before,
        offset_before and time_before: the largest of the partition so far, null at first. seq_before has
        the jumps until the record.
    """
    earlier = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)

    def largest(column: str, first: Mapping[int, Any]) -> Column:
        return F.coalesce(F.max(column).over(earlier), by_partition(first, column, checked))

    jumps, ends = division.jumps, division.ends
    jumped = _jumped(jumps)
    without_jumps = checked.withColumn("lane_seq", F.try_subtract("lane_seq", jumped)) if jumps else checked
    first_seqs = {p: record.lane_seq - _jumped_before(jumps, p, record) for p, record in preceding.items()}
    compared = without_jumps.select(
        *(name for name in checked.columns if name != "lane_seq"),
        F.try_add("lane_seq", jumped).alias("lane_seq"),
        F.try_add(largest("lane_seq", first_seqs), jumped).alias("seq_before"),
        largest("offset", {p: record.offset for p, record in preceding.items()}).alias("offset_before"),
        largest("timestamp", {p: record.timestamp for p, record in preceding.items()}).alias("time_before"),
    )
    lane_seq, seq_before, offset = F.col("lane_seq"), F.col("seq_before"), F.col("offset")
    # A missing record took an offset, too. If lane_seq advances by more than the offset, no record is
    # missing: a gateway whose partition retention has emptied continues at the log's end.
    is_renumbered = (
        F.lit(outlives_retention)
        & (lane_seq - offset > seq_before - F.col("offset_before"))
        & (lane_seq <= offset)
    )
    is_further = lane_seq - 1 > seq_before  # seq_before + 1 could overflow
    conditions = {
        GAP: is_further & ~is_renumbered,
        ORDER: lane_seq <= seq_before,
        TIME_ORDER: F.col("timestamp") < F.col("time_before"),
        RENUMBERED: is_further & is_renumbered,
        WRONG_PARTITION: offset >= by_partition(ends, "offset", checked),
    }
    faults = F.col("faults").bitwiseOR(_bits(conditions))
    return compared.withColumn("faults", faults)


def _jumped(jumps: Sequence[Jump]) -> Column:
    """Return by how much the numbers of a partition have jumped until a record."""
    by = F.lit(0).cast("bigint")
    for jump in jumps:
        is_behind = (F.col("partition") == jump.partition) & (F.col("offset") >= jump.offset)
        by = by + F.when(is_behind, jump.by).otherwise(0)
    return by


def _jumped_before(jumps: Sequence[Jump], partition: int, record: PrecedingRecord) -> int:
    """Return the same for the record before the first one."""
    return sum(jump.by for jump in jumps if jump.partition == partition and jump.offset <= record.offset)


def with_earlier_keys(checked: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """Return these records and those of earlier audits (KEY_COLUMNS), which are not reported again."""
    own = checked.withColumn("is_new", F.lit(True))
    if earlier is None:
        return own
    return own.unionByName(earlier.withColumn("is_new", F.lit(False)), allowMissingColumns=True)


def repeated_hashes(checked: DataFrame) -> DataFrame:
    """Return `hash` of each event key that is stored more than once, and few others of the same hash."""
    keyed = checked.where(F.col("event_key").isNotNull())
    hashes = keyed.groupBy("hash").agg(F.count("*").alias("copies"))
    return hashes.where(F.col("copies") > 1).select("hash")


def repeats(
    checked: DataFrame, hashes: DataFrame, bounds: DedupeBounds, division: Division = UNDIVIDED
) -> DataFrame:
    """Return every copy of an event but the first in the topic: a violation, allowed, or an open question."""
    copies = checked.where(F.col("event_key").isNotNull()).join(hashes, "hash", "left_semi")
    of_event = Window.partitionBy("event_key").orderBy("timestamp", "partition", "offset")
    first = {name: F.first(name).over(of_event) for name in ("fingerprint", "partition", "offset")}
    compared = copies.select(
        "*",
        *(
            F.lag(name).over(of_event).alias(f"earlier_{name}")
            for name in ("timestamp", "partition", "offset", "lane_seq")
        ),
        *(column.alias(f"first_{name}") for name, column in first.items()),
    ).where(F.col("is_new") & F.col("earlier_timestamp").isNotNull())
    compared = compared.transform(with_keys_between, division)
    is_same = F.col("fingerprint") == F.col("first_fingerprint")
    return affected(
        compared,
        F.when(is_forgotten(bounds), ALLOWED_REPEAT)
        .when(F.lit(None in bounds), REPEATED)
        .when(is_same, DUPLICATE)
        .otherwise(CONFLICT),
        F.concat(
            F.lit("the first is in partition "), "first_partition", F.lit(" at offset "), "first_offset"
        ),
    )


def faulty(checked: DataFrame) -> DataFrame:
    """Return every record with `faults`: kind, partition, offset, message_id, source, detail."""
    details = {
        FOREIGN: F.col("flaw"),
        VERSION: F.lit(""),
        VALUE: F.lit(""),
        ALTERED: F.col("altered"),
        WRONG_PARTITION: F.coalesce(
            F.concat(F.lit("belongs to partition "), F.col("expected_partition")),
            F.lit("the partition has had no slots since before it"),
        ),
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
    faults = [
        F.when(
            F.col("faults").bitwiseAND(1 << bit) != 0,
            F.struct(F.lit(kind).alias("kind"), details[kind].alias("detail")),
        )
        for bit, kind in enumerate(_FLAGS)
    ]
    with_fault = checked.where(F.col("faults") != 0)
    each = with_fault.select("*", F.explode(F.array_compact(F.array(*faults))).alias("fault"))
    return affected(each, F.col("fault.kind"), F.col("fault.detail"))


def outside_retention(checked: DataFrame, retention: timedelta) -> DataFrame:
    """Return every record older than the retention, counted from the newest record."""
    newest = checked.agg(F.max("timestamp").alias("newest"))
    old = checked.crossJoin(newest).where(F.col("timestamp") < F.col("newest") - F.lit(retention))
    return affected(old, F.lit(OUTSIDE_RETENTION), F.concat(F.lit("of "), F.col("timestamp").cast("string")))


def _bits(conditions: Mapping[str, Column]) -> Column:
    """Return the kinds whose condition is true as bits; null is not true."""
    bits = F.lit(0)
    for kind, condition in conditions.items():
        bits = bits.bitwiseOR(F.when(condition, 1 << _FLAGS.index(kind)).otherwise(0))
    return bits


def by_partition(values: Mapping[int, Any], column: str, like: DataFrame) -> Column:
    """Return the value of each partition as a column of the type of `column`; null without a value."""
    given = {partition: value for partition, value in values.items() if value is not None}
    value_column = F.lit(None)
    if given:
        pairs = [F.lit(item) for pair in given.items() for item in pair]
        value_column = F.create_map(*pairs)[F.col("partition")]
    return value_column.cast(like.schema[column].dataType)


def affected(records: DataFrame, kind: Column, detail: Column) -> DataFrame:
    """Return records with what a report says of them: kind, partition, offset, message_id, source, detail."""
    # A foreign record may hold other bytes than UTF-8.
    message_id = F.make_valid_utf8("message_id")
    return records.select(
        kind.alias("kind"),
        "partition",
        "offset",
        message_id.alias("message_id"),
        F.make_valid_utf8("source").alias("source"),
        detail.alias("detail"),
    ).select(*_AFFECTED)
