"""
The columns of all tables.

RECORD is what every source yields; ARCHIVE is what the archive job stores.
"""

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
        T.StructField("event_time", T.TimestampType()),  # the client's clock
        T.StructField("day", T.DateType()),  # UTC, of event_time, or of the log time if that is null
        T.StructField("properties", T.StringType()),  # JSON
        T.StructField("value", T.StringType()),  # the event as JSON, whole
        T.StructField("gw", T.BinaryType()),
        T.StructField("gs", T.BinaryType()),  # null in archives that began without this column
        # The bytes of a text that is no UTF-8; null otherwise.
        T.StructField("message_id_bytes", T.BinaryType()),
        T.StructField("value_bytes", T.BinaryType()),
        T.StructField("dt", T.StringType()),  # 2026-01-31, UTC, of the log time; a folder
        T.StructField("hr", T.StringType()),  # 00 to 23; a folder
    ]
)

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
