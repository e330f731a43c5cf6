"""Claim: the record by which a gateway tests a broker's fence is no event for any job."""

from pyspark.sql import SparkSession

from dedupe.storage.kafka.wire import PROBE_HEADERS
from pipeline.sources.records import _from_kafka

MESSAGE = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
HEADERS = "headers array<struct<key: string, value: binary>>"


def test_probe_is_skipped_and_others_are_not(spark: SparkSession) -> None:
    headers = [[("source", b"web")], PROBE_HEADERS, None, []]
    rows = [("events", 0, offset, None, None, b"{}", each) for offset, each in enumerate(headers)]
    messages = spark.createDataFrame(rows, f"{MESSAGE}, {HEADERS}")

    assert [row.offset for row in _from_kafka(messages).collect()] == [0, 2, 3]
