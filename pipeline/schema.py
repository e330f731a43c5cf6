"""
The columns of all tables.

RECORD is what every source yields; ARCHIVE is what the archive job stores.
"""

from collections.abc import Mapping

from pyspark.sql import types as T

RECORD = T.StructType(
    [
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),  # log time: the gateway's arrival time
        T.StructField("key", T.BinaryType()),  # messageId, UTF-8
        T.StructField("value", T.BinaryType()),  # the event as JSON
        T.StructField("source", T.StringType()),  # null if there is no such header, or not one in UTF-8
        T.StructField("gw", T.BinaryType()),  # header of record format v1; null unless there is exactly one
        T.StructField("gs", T.BinaryType()),  # header with the state of its client session before it, or null
    ]
)

LOG_EPOCH = "log_epoch"
"""The log that a row is of: 0 for the first one, then one more with each topic that --next-topic took."""

ARCHIVE = T.StructType(
    [
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("message_id", T.StringType()),
        T.StructField("source", T.StringType()),
        # Fields of the event, for queries; null if the event lacks them, or the value is no event.
        T.StructField("type", T.StringType()),
        T.StructField("event", T.StringType()),
        T.StructField("user_id", T.StringType()),
        T.StructField("anonymous_id", T.StringType()),
        T.StructField("previous_id", T.StringType()),
        T.StructField("group_id", T.StringType()),
        T.StructField("name", T.StringType()),
        T.StructField("category", T.StringType()),
        T.StructField("event_time", T.TimestampType()),  # the client's clock
        T.StructField("sent_at", T.TimestampType()),  # the client's clock
        T.StructField("day", T.DateType()),  # UTC, of event_time, or of the log time if that is null
        T.StructField("properties", T.StringType()),  # JSON
        T.StructField("traits", T.StringType()),  # JSON
        T.StructField("context", T.StringType()),  # JSON
        T.StructField("value", T.StringType()),  # the event as JSON, whole
        T.StructField("gw", T.BinaryType()),
        T.StructField("gs", T.BinaryType()),  # null in archives that began without this column
        # The bytes of a text that is no UTF-8; null otherwise.
        T.StructField("message_id_bytes", T.BinaryType()),
        T.StructField("value_bytes", T.BinaryType()),
        T.StructField(LOG_EPOCH, T.IntegerType()),  # null, which is 0, in archives that began without it
        T.StructField("dt", T.StringType()),  # 2026-01-31, UTC, of the log time; a folder
        T.StructField("hr", T.StringType()),  # 00 to 23; a folder
    ]
)

DERIVED = tuple(name for name in ARCHIVE.names if name not in {*RECORD.names, LOG_EPOCH})
"""The columns of an archive that the job computes of each record, such as type and day."""
ARCHIVE_VERSION = 2
"""Of the columns of ARCHIVE, as ledgers count them."""

LATER_COLUMNS = ("previous_id", "group_id", "name", "category", "sent_at", "traits", "context")
"""The columns that came with version 2: null in the rows of before."""

MINUTE_COUNTS = T.StructType(
    [
        T.StructField("minute", T.TimestampType()),
        T.StructField("source", T.StringType()),
        T.StructField("type", T.StringType()),
        T.StructField("events", T.LongType()),
    ]
)

SESSIONS = T.StructType(
    [
        T.StructField("user", T.StringType()),
        T.StructField("source", T.StringType()),
        T.StructField("began", T.TimestampType()),
        T.StructField("ended", T.TimestampType()),  # time of the last event
        T.StructField("events", T.LongType()),
        T.StructField("visitor", T.StringType()),  # the user, or with --by visitor the anonymousId
    ]
)

DUPLICATE_SAMPLE = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("message_id", T.StringType()),
        T.StructField("original_partition", T.IntegerType()),
        T.StructField("original_offset", T.LongType()),
        T.StructField("cause", T.StringType()),
        T.StructField("library", T.StringType()),
        T.StructField("library_version", T.StringType()),
        T.StructField("arrived_ms", T.LongType()),
    ]
)
"""A record of the topic of samples, see app/ingest/duplicate_samples.py."""

DUPLICATES = T.StructType(
    [
        *DUPLICATE_SAMPLE.fields[:-1],
        T.StructField("arrived_at", T.TimestampType()),  # of the copy
        T.StructField("log_partition", T.IntegerType()),  # of the sample
        T.StructField("log_offset", T.LongType()),
    ]
)

DAY = ("dt",)
"""The folders of tables by day."""


def by_day(columns: T.StructType) -> T.StructType:
    """Return columns and the day as a text, 2026-01-31."""
    return T.StructType([*columns.fields, T.StructField(*DAY, T.StringType())])


TEXT, NUMBER, MOMENT = "string", "bigint", "timestamp"

TABLE_COLUMNS = {
    "id": TEXT,  # messageId
    "source": TEXT,
    "user_id": TEXT,
    "anonymous_id": TEXT,
    "event": TEXT,  # the name of its table
    "event_text": TEXT,  # as it was sent
    "name": TEXT,
    "category": TEXT,
    "group_id": TEXT,
    "previous_id": TEXT,
    "type": TEXT,
    "event_id": TEXT,  # this and what follows: a CloudEvent's attributes
    "event_source": TEXT,
    "subject": TEXT,
    "data_content_type": TEXT,
    "data_schema": TEXT,
    "data_base64": TEXT,
    "event_time": MOMENT,
    "data": TEXT,
    "extensions": TEXT,
    "received_at": MOMENT,  # log time
    "sent_at": MOMENT,
    "original_timestamp": MOMENT,  # the client's clock
    "timestamp": MOMENT,  # by the gateway's clock
    "properties": TEXT,
    "traits": TEXT,
    "value": TEXT,
    LOG_EPOCH: "int",  # null, which is 0, in tables that began without it
    "log_partition": "int",
    "log_offset": NUMBER,
    "dt": TEXT,  # 2026-01-31, UTC, of the log time; a folder
}
"""The columns of the job tables that do not depend on events, with their types; each table has some."""

LATEST_COLUMNS = {
    "id": TEXT,
    "source": TEXT,
    "received_at": MOMENT,  # of the last call
    "_rescued": "map<string,string>",
    "_positions": "map<string,struct<log_time:timestamp,log_partition:int,log_offset:bigint>>",
}

DRIFT_COLUMNS = {
    "table_name": TEXT,
    "column_name": TEXT,
    "column_type": TEXT,
    "found": TEXT,
    "row_count": NUMBER,
    "log_partition": "int",
    "log_offset": NUMBER,
    "load": NUMBER,
    "dt": TEXT,
}

LOAD_COLUMNS = {
    "load": NUMBER,
    "loaded_at": MOMENT,
    "events": NUMBER,
    "tables": NUMBER,
    "rescued": NUMBER,
    "dt": TEXT,
}


def struct_of(columns: Mapping[str, str]) -> T.StructType:
    """Return a schema of columns by their types in SQL."""
    return T.StructType([T.StructField(name, T.DataType.fromDDL(text)) for name, text in columns.items()])
