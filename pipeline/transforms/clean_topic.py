"""
Transforms of clean topics: pure functions from DataFrame to DataFrame in Spark's built-in SQL.

Other producers may write any bytes into a record, so texts and times become valid table keys here.
The layout of the `gw` header is that of dedupe.model.record; tests/pipeline/test_transforms.py compares both
with the golden vectors.
"""

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dedupe.model.identity import BLANKS
from dedupe.model.record import FLAG_CLOUDEVENT, FLAG_SESSION
from pipeline.schema import LOG_EPOCH, SESSIONS

SESSION_HEADER_BYTES = 90  # of `gw` with flag 1; without it 34
BASE_HEADER_BYTES = 34
SEQUENCE = "decimal(20, 0)"  # 64 bits without a sign

EVENT_FIELDS = (
    "type string, event string, userId string, anonymousId string, previousId string, groupId string, "
    "name string, category string, timestamp string, sentAt string, properties string, traits string, "
    "context string, time string"
)
"""Of an event; an object becomes JSON text. `time` is what a CloudEvent has for `timestamp`."""

KEY_CHARS_MAX = 255
"""Of a text in a table key: two of them fit into the largest index entry of Postgres, 2.7 KB."""

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
"""The last minute that both Python and Postgres can represent."""


def decoded(records: DataFrame) -> DataFrame:
    """
    Add the fields of the `gw` header; null where the header is missing or too short.

    Adds version, flags, event_key (16 bytes), fingerprint (8 bytes), lane_seq (null from 2**63 on,
    which no gateway reaches), and of a client session client_hash, session_hash (16 bytes each),
    sequence and acknowledged_through (unsigned 64 bits).
    """
    gw = F.when(F.length("gw") >= BASE_HEADER_BYTES, F.col("gw"))
    # Spark converts bytes to numbers by way of text, which is costly: so two conversions read all of them.
    numbered = records.select(
        "*", _signed(gw, 0, 2).cast("int").alias("_first"), _signed(gw, 26, 8).alias("_lane_seq")
    )
    flags = F.col("_first").bitwiseAND(0xFF)
    is_session = flags.bitwiseAND(FLAG_SESSION) != 0
    session = F.when(is_session & (F.length("gw") >= SESSION_HEADER_BYTES), F.col("gw"))
    return numbered.select(
        *records.columns,
        F.shiftright("_first", 8).alias("version"),
        flags.alias("flags"),
        _slice(gw, 2, 16).alias("event_key"),
        _slice(gw, 18, 8).alias("fingerprint"),
        F.when(F.col("_lane_seq") >= 0, F.col("_lane_seq")).alias("lane_seq"),
        _slice(session, 34, 16).alias("client_hash"),
        _slice(session, 50, 16).alias("session_hash"),
        unsigned(_slice(session, 66, 8)).alias("sequence"),
        unsigned(_slice(session, 82, 8)).alias("acknowledged_through"),
    )


def routed_partition(event_key: Column, client_hash: Column, partitions: int) -> Column:
    """Return the partition of a record, by the rule of dedupe.model.routing."""
    routing_key = F.coalesce(client_hash, event_key)
    number = _signed(routing_key, 0, 8)
    # The rule takes the first 64 bits as unsigned; a negative number here is 2**64 too small.
    correction = F.when(number < 0, 2**64 % partitions).otherwise(0)
    return (F.pmod(number, F.lit(partitions)) + correction) % partitions


def archived(records: DataFrame, *others: Column | str) -> DataFrame:
    """
    Turn schema.RECORD into schema.ARCHIVE, with valid UTF-8 in its texts, and `others` behind it.

    Records without a column log_epoch are of the first log.
    """
    key, value = (F.make_valid_utf8(F.col(name).cast("string")) for name in ("key", "value"))
    log_time = bounded_time(F.col("timestamp"))
    parsed = records.withColumns({"text": value, "parsed": F.from_json(value, EVENT_FIELDS)})
    is_cloudevent = _signed(F.col("gw"), 1, 1).bitwiseAND(FLAG_CLOUDEVENT) != 0
    told_time = F.when(is_cloudevent, F.col("parsed.time")).otherwise(F.col("parsed.timestamp"))
    event_time = _client_time(told_time)
    return parsed.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        key.alias("message_id"),
        "source",
        "parsed.type",
        "parsed.event",
        F.col("parsed.userId").alias("user_id"),
        F.col("parsed.anonymousId").alias("anonymous_id"),
        F.col("parsed.previousId").alias("previous_id"),
        F.col("parsed.groupId").alias("group_id"),
        "parsed.name",
        "parsed.category",
        event_time.alias("event_time"),
        _client_time(F.col("parsed.sentAt")).alias("sent_at"),
        F.to_date(F.coalesce(event_time, log_time)).alias("day"),
        "parsed.properties",
        "parsed.traits",
        "parsed.context",
        F.col("text").alias("value"),
        "gw",
        "gs",
        _unless_text("key").alias("message_id_bytes"),
        _unless_text("value").alias("value_bytes"),
        F.col(LOG_EPOCH) if LOG_EPOCH in records.columns else F.lit(0).alias(LOG_EPOCH),
        F.date_format(log_time, "yyyy-MM-dd").alias("dt"),
        F.date_format(log_time, "HH").alias("hr"),
        *others,
    )


def per_minute(records: DataFrame) -> DataFrame:
    """
    Count schema.RECORD by minute, source and type; a missing source or type counts as "".

    Returns:
        schema.MINUTE_COUNTS, and altered (how many of the events had another minute, source or type,
        which no table key can hold) and first_altered (partition and offset of one of them).
    """
    event = F.from_json(F.col("value").cast("string"), "type string")
    parsed = records.select("partition", "offset", "timestamp", "source", event["type"].alias("type"))
    typed = parsed.select(
        minute_of(F.col("timestamp")).alias("minute"),
        *(key_text(F.col(name)).alias(name) for name in ("source", "type")),
        F.when(
            (key_text(F.col("source")) != F.col("source"))
            | (key_text(F.col("type")) != F.col("type"))
            | ~F.col("timestamp").eqNullSafe(bounded_time(F.col("timestamp"))),
            F.struct("partition", "offset"),
        ).alias("altered"),
    )
    return typed.groupBy("minute", "source", "type").agg(
        F.count("*").alias("events"),
        F.count("altered").alias("altered"),
        F.min("altered").alias("first_altered"),
    )


def sessions(
    records: DataFrame,
    gap: timedelta,
    lateness: timedelta,
    *,
    by_visitor: bool = False,
    by_event_time: bool = False,
) -> DataFrame:
    """
    Gather schema.RECORD into schema.SESSIONS.

    Args:
        records: those without a user and a visitor are left out; blank text is none.
        gap: a pause that ends a session.
        lateness: how far partitions may lie apart in log time, in a stream.
        by_visitor: sessions belong to an anonymousId, which a device keeps over a login, and their user is
            the last one who was logged in; else to a userId, or an anonymousId if there is none.
        by_event_time: take the client's time where it is at most `lateness` older than the log time and
            not newer; else the log time.
    """
    event = F.from_json(F.col("value").cast("string"), "userId string, anonymousId string, timestamp string")
    log_time = bounded_time(F.col("timestamp"))
    lateness_s = int(lateness.total_seconds())
    client_time = event["timestamp"].try_cast("timestamp")
    # A wrong clock of one client must not move the watermark past the events of others.
    is_fit = client_time.between(log_time - F.expr(f"INTERVAL {lateness_s} seconds"), log_time)
    user, visitor = unless_blank(event["userId"]), unless_blank(event["anonymousId"])
    key = (visitor, user) if by_visitor else (user, visitor)
    events = records.select(
        (F.when(is_fit, client_time).otherwise(log_time) if by_event_time else log_time).alias("timestamp"),
        F.coalesce("source", F.lit("")).alias("source"),
        F.coalesce(*key).alias("user"),
        user.alias("logged_in"),
    ).where(F.col("user").isNotNull())
    watermarked = events.withWatermark("timestamp", f"{lateness_s * (2 if by_event_time else 1)} seconds")
    window = F.session_window("timestamp", f"{int(gap.total_seconds())} seconds")
    totals = [F.max("timestamp").alias("ended"), F.count("*").alias("events")]
    if by_visitor:
        last_login = F.max_by("logged_in", F.when(F.col("logged_in").isNotNull(), F.col("timestamp")))
        totals.append(last_login.alias("logged_in"))
    user = F.coalesce("logged_in", F.col("user")) if by_visitor else F.col("user")
    return (
        watermarked.groupBy(window.alias("window"), "source", "user")
        .agg(*totals)
        .withColumns({"began": F.col("window.start"), "visitor": F.col("user")})
        .withColumn("user", user)
        .select(*SESSIONS.names)
    )


def bounded_time(timestamp: Column) -> Column:
    """Return a log time within EARLIEST and LATEST; a missing one is EARLIEST."""
    return F.least(F.greatest(timestamp, F.lit(EARLIEST)), F.lit(LATEST))


def minute_of(timestamp: Column) -> Column:
    """Return the minute of a log time, bounded."""
    return F.date_trunc("minute", bounded_time(timestamp))


def key_text(text: Column) -> Column:
    """Return a text as a table key: "" for null, U+FFFD for NUL and invalid UTF-8, at most KEY_CHARS_MAX."""
    valid = F.make_valid_utf8(F.coalesce(text, F.lit("")))
    return F.left(F.translate(valid, "\x00", "\ufffd"), F.lit(KEY_CHARS_MAX))


def unless_blank(text: Column) -> Column:
    """Return a text unless it is empty or shows nothing, as dedupe.model.identity.is_blank; else null."""
    return F.when(F.btrim(text, F.lit(BLANKS)) != "", text)


def unsigned(binary: Column) -> Column:
    """Return at most eight big-endian bytes as an unsigned number."""
    return F.conv(F.hex(binary), 16, 10).cast(SEQUENCE)


def _client_time(text: Column) -> Column:
    """Return a client's text as a time from EARLIEST to LATEST; else null."""
    time = text.try_cast("timestamp")
    return F.when(time.between(F.lit(EARLIEST), F.lit(LATEST)), time)


def _unless_text(name: str) -> Column:
    """Return the bytes of a column if they are no UTF-8; else null."""
    return F.when(~F.is_valid_utf8(F.col(name).cast("string")), F.col(name))


def _slice(binary: Column, start: int, length: int) -> Column:
    return F.substring(binary, start + 1, length)


def _signed(binary: Column, start: int, length: int) -> Column:
    """Return big-endian bytes as a bigint; eight bytes are signed."""
    return F.conv(F.hex(_slice(binary, start, length)), 16, -10).cast("bigint")
