"""
What a clean topic must look like, as DataFrame functions: each record that does not is named.

One pass over the records decides whether there is anything to name (`surveyed`): one shuffle by
partition, then a running maximum in offset order and a count per event key. Only if it finds
something are the records read again to name it (`violations`).

Offsets have gaps, one a transaction, so nothing here is concluded from them: lane_seq tells what is
missing.
"""

from collections.abc import Mapping
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dedupe.record import VERSION as VERSION_READ
from pipeline.transforms import BASE_HEADER_BYTES, decoded, minute_of, routed_partition

FOREIGN = "foreign"
VERSION = "version"
WRONG_PARTITION = "wrong_partition"
GAP = "gap"
ORDER = "order"
TIME_ORDER = "time_order"
DUPLICATE = "duplicate"
CONFLICT = "conflict"
WRONG_KEY = "wrong_key"
CLIENT_GAP = "client_gap"
OUTSIDE_RETENTION = "outside_retention"

VIOLATIONS = {
    FOREIGN: "no gateway wrote it: its gw header is missing or too short",
    VERSION: f"its record version is not {VERSION_READ}",
    WRONG_PARTITION: "its key belongs into another partition",
    GAP: "records before it are missing: lane_seq jumps",
    ORDER: "its lane_seq is not larger than those before it",
    TIME_ORDER: "its timestamp is smaller than those before it",
    DUPLICATE: "its event is stored before, within the window",
    CONFLICT: "its event is stored before with other content, within the window",
    WRONG_KEY: "its key or partition does not follow from the identity secret",
}
"""What breaks the gateway's promise, and what is told about it."""

NOTICES = {
    CLIENT_GAP: "the client lost events before it: its sequence jumps",
    OUTSIDE_RETENTION: "it is older than the retention",
}
"""What is worth knowing, but no fault of the gateway's."""

_FLAGS = (FOREIGN, VERSION, WRONG_PARTITION, GAP, ORDER, TIME_ORDER)
_NAMED = ("kind", "partition", "offset", "message_id", "source", "detail")


def examined(records: DataFrame, partitions: int) -> DataFrame:
    """
    Judge each record by itself and by those before it in its partition.

    Args:
        records: schema.RECORD.
        partitions: how many the topic has.

    Returns:
        partition, offset, timestamp, message_id, source, event_key, fingerprint, lane_seq,
        client_hash, session_hash, sequence, expected_partition, seq_before (largest lane_seq of the
        partition so far, null at first), and `faults`, the kinds of _FLAGS as bits.
    """
    is_readable = (F.length("gw") >= BASE_HEADER_BYTES) & (F.col("version") == VERSION_READ)
    own = records.transform(decoded).select(
        "partition",
        "offset",
        "timestamp",
        F.col("key").cast("string").alias("message_id"),
        "source",
        F.col("gw").isNull().alias("is_headless"),
        "version",
        *(
            F.when(is_readable, F.col(name)).alias(name)
            for name in ("event_key", "fingerprint", "lane_seq", "client_hash", "session_hash", "sequence")
        ),
    )
    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    compared = own.select(
        "*",
        routed_partition(F.col("event_key"), F.col("client_hash"), partitions).alias("expected_partition"),
        F.max("lane_seq").over(before).alias("seq_before"),
        F.max("timestamp").over(before).alias("time_before"),
    )
    return compared.select("*", _faults().alias("faults")).drop("version", "is_headless")


def surveyed(examined_records: DataFrame, counted_ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
    """
    Sum up per partition and minute.

    Args:
        examined_records: of `examined`.
        counted_ranges: by partition, the offsets [start, end) that a reconciliation counts.

    Returns:
        partition, minute, records, counted, faults (bits of all), copies (of the event stored most
        often), first_offset, last_offset, first_seq, last_seq, session_records.
    """
    events = examined_records.groupBy("partition", "event_key").agg(
        F.count("*").alias("records"),
        F.bit_or("faults").alias("faults"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min("lane_seq").alias("first_seq"),
        F.max("lane_seq").alias("last_seq"),
        F.min("timestamp").alias("timestamp"),
        F.sum(_is_counted(counted_ranges).cast("int")).alias("counted"),
        F.count("client_hash").alias("session_records"),
    )
    minutes = events.groupBy("partition", minute_of(F.col("timestamp")).alias("minute"))
    return minutes.agg(
        F.sum("records").alias("records"),
        F.sum("counted").alias("counted"),
        F.bit_or("faults").alias("faults"),
        F.max(F.when(F.col("event_key").isNotNull(), F.col("records")).otherwise(1)).alias("copies"),
        F.min("first_offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("first_seq").alias("first_seq"),
        F.max("last_seq").alias("last_seq"),
        F.sum("session_records").alias("session_records"),
    )


def violations(examined_records: DataFrame, window: timedelta) -> DataFrame:
    """Name every violation that the records themselves show: kind, place, message_id, source, detail."""
    return _faulty(examined_records).unionByName(_repeated(examined_records, window))


def client_gaps(examined_records: DataFrame) -> DataFrame:
    """Name every record of a client session before which the client's sequence jumps."""
    session = Window.partitionBy("client_hash", "session_hash").orderBy("sequence")
    jumps = examined_records.where(F.col("client_hash").isNotNull()).select(
        "*", F.lag("sequence").over(session).alias("sequence_before")
    )
    missing = F.col("sequence") - F.col("sequence_before") - 1
    return _named(
        jumps.where(missing > 0),
        F.lit(CLIENT_GAP),
        F.concat(missing.cast("string"), F.lit(" events after sequence "), F.col("sequence_before")),
    )


def outside_retention(examined_records: DataFrame, retention: timedelta) -> DataFrame:
    """Name every record older than the retention, by the newest record's time."""
    newest = examined_records.agg(F.max("timestamp").alias("newest"))
    old = examined_records.crossJoin(newest).where(F.col("timestamp") < F.col("newest") - F.lit(retention))
    return _named(old, F.lit(OUTSIDE_RETENTION), F.concat(F.lit("of "), F.col("timestamp").cast("string")))


def has_faults(faults: int, copies: int) -> bool:
    """Whether a row of `surveyed` says that there is something to name."""
    return faults != 0 or copies > 1


def _faults() -> Column:
    lane_seq, seq_before = F.col("lane_seq"), F.col("seq_before")
    conditions = {
        FOREIGN: F.col("is_headless") | F.col("version").isNull(),
        VERSION: F.col("version") != VERSION_READ,
        WRONG_PARTITION: F.col("expected_partition") != F.col("partition"),
        GAP: lane_seq > seq_before + 1,
        ORDER: lane_seq <= seq_before,
        TIME_ORDER: F.col("timestamp") < F.col("time_before"),
    }
    bits = (F.when(conditions[kind], 1 << bit).otherwise(0) for bit, kind in enumerate(_FLAGS))
    faults = F.lit(0)
    for bit in bits:
        faults = faults.bitwiseOR(bit)
    return faults


def _is_counted(ranges: Mapping[int, tuple[int, int]]) -> Column:
    is_counted = F.lit(False)
    for partition, (start, end) in ranges.items():
        is_there = (F.col("offset") >= start) & (F.col("offset") < end)
        is_counted = is_counted | ((F.col("partition") == partition) & is_there)
    return is_counted


def _faulty(records: DataFrame) -> DataFrame:
    details = {
        FOREIGN: F.lit(""),
        VERSION: F.lit(""),
        WRONG_PARTITION: F.concat(F.lit("belongs into partition "), F.col("expected_partition")),
        GAP: F.concat(
            (F.col("lane_seq") - F.col("seq_before") - 1).cast("string"),
            F.lit(" missing: lane_seq "),
            F.col("lane_seq"),
            F.lit(" follows "),
            F.col("seq_before"),
        ),
        ORDER: F.concat(F.lit("lane_seq "), F.col("lane_seq"), F.lit(" after "), F.col("seq_before")),
        TIME_ORDER: F.concat(F.col("timestamp").cast("string"), F.lit(" after "), F.col("time_before")),
    }
    found = [
        F.when(
            F.col("faults").bitwiseAND(1 << bit) != 0,
            F.struct(F.lit(kind).alias("kind"), details[kind].alias("detail")),
        )
        for bit, kind in enumerate(_FLAGS)
    ]
    faulty = records.where(F.col("faults") != 0)
    each = faulty.select("*", F.explode(F.array_compact(F.array(*found))).alias("fault"))
    return _named(each, F.col("fault.kind"), F.col("fault.detail"))


def _repeated(records: DataFrame, window: timedelta) -> DataFrame:
    """Copies of an event, anywhere in the topic, that come after its first within the window."""
    keyed = records.where(F.col("event_key").isNotNull())
    repeated = keyed.groupBy("event_key").agg(F.count("*").alias("copies")).where(F.col("copies") > 1)
    copies = keyed.join(repeated.select("event_key"), "event_key", "left_semi")
    of_event = Window.partitionBy("event_key").orderBy("timestamp", "partition", "offset")
    compared = copies.select(
        "*",
        F.lag("timestamp").over(of_event).alias("earlier"),
        F.first("fingerprint").over(of_event).alias("first_fingerprint"),
        F.first("partition").over(of_event).alias("first_partition"),
        F.first("offset").over(of_event).alias("first_offset"),
    )
    is_same = F.col("fingerprint") == F.col("first_fingerprint")
    return _named(
        compared.where(F.col("timestamp") - F.col("earlier") < F.lit(window)),
        F.when(is_same, DUPLICATE).otherwise(CONFLICT),
        F.concat(
            F.lit("the first is in partition "), "first_partition", F.lit(" at offset "), "first_offset"
        ),
    )


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
