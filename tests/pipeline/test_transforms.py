"""Claim: SQL reads the `gw` header and routes keys as the gateway does; both agree on the golden vectors."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from pipeline.schema import RECORD
from pipeline.sources.records import from_archive
from pipeline.transforms.clean_topic import archived, decoded, routed_partition

ROOT = Path(__file__).resolve().parents[2]
VECTORS: dict[str, Any] = orjson.loads((ROOT / "tests/unit/dedupe/model/golden_vectors.json").read_bytes())
SIGNED_MAX = 2**63 - 1


def test_header_is_decoded_as_the_golden_records_say(spark: SparkSession) -> None:
    records = [
        (vector["event"], vector["lane_seq"], bytes.fromhex(dict(vector["record"]["headers"])["gw"]))
        for vector in VECTORS["records"]
    ]
    rows = [(f"t{i}", 0, i, None, b"", b"", "web", gw, None) for i, (_, _, gw) in enumerate(records)]
    expected = [
        (
            i,
            1,
            event["key"],
            event["fingerprint"],
            lane_seq if lane_seq <= SIGNED_MAX else None,
            *_session(event["session"]),
        )
        for i, (event, lane_seq, _) in enumerate(records)
    ]

    found = spark.createDataFrame(rows, RECORD).transform(decoded)

    columns = (
        "offset bigint, version int, event_key string, fingerprint string, lane_seq bigint, "
        "client_hash string, session_hash string, "
        "sequence decimal(20, 0), acknowledged_through decimal(20, 0)"
    )
    assertDataFrameEqual(
        found.select(
            "offset",
            "version",
            *(F.lower(F.hex(name)).alias(name) for name in ("event_key", "fingerprint")),
            "lane_seq",
            *(F.lower(F.hex(name)).alias(name) for name in ("client_hash", "session_hash")),
            "sequence",
            "acknowledged_through",
        ),
        spark.createDataFrame(expected, columns),
    )


def test_header_that_is_missing_or_short_decodes_to_null(spark: SparkSession) -> None:
    rows = [
        ("t", 0, 0, None, b"", b"", None, None, None),
        ("t", 0, 1, None, b"", b"", None, b"\x01\x00short", None),
    ]

    found = spark.createDataFrame(rows, RECORD).transform(decoded).select("version", "event_key", "lane_seq")

    assertDataFrameEqual(
        found,
        spark.createDataFrame([(None, None, None)] * 2, "version int, event_key binary, lane_seq bigint"),
    )


def test_keys_are_routed_as_the_golden_vectors_say(spark: SparkSession) -> None:
    cases: list[tuple[bytes, bytes | None, int, int]] = [
        (bytes.fromhex(v["key"]), None, v[f"partition_of_{n}"], n)
        for v in VECTORS["message_keys"]
        for n in (8, 12)
    ]
    cases += [
        (bytes.fromhex(v["key"]), bytes.fromhex(v["client_hash"]), v["partition_of_8"], 8)
        for v in VECTORS["sessions"]
    ]
    keys = spark.createDataFrame(cases, "event_key binary, client_hash binary, expected bigint, n int")

    for partitions in (8, 12):
        routed = routed_partition(F.col("event_key"), F.col("client_hash"), partitions).alias("found")
        found = keys.where(F.col("n") == partitions).select(routed, "expected")
        assertDataFrameEqual(found.select("found"), found.select(F.col("expected").alias("found")))


def test_archive_holds_what_the_record_says(spark: SparkSession) -> None:
    moment = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    row = ("events", 1, 7, moment, b"id-1", b'{"a":"\xc3\xa9"}', "web", b"\x01\x00", b"\x07")
    records = spark.createDataFrame([row], RECORD)

    found = records.transform(archived)

    assert found.select("message_id", "value", "dt", "hr").collect() == [
        ("id-1", '{"a":"é"}', "2026-01-31", "23")
    ]
    assertDataFrameEqual(found.transform(from_archive), records)


def test_archive_has_columns_of_what_the_event_says(spark: SparkSession) -> None:
    moment = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    values = [
        b'{"type":"track","event":"Paid","userId":"u","anonymousId":7,"timestamp":"2026-02-01T00:30:00+01:00",'
        b'"properties":{"price": 1.5,"tags":["a","\\u00e9"]}}',
        b'{"type":"page","timestamp":"2026-02-02","properties":null}',
        b'{"type":["no","text"],"timestamp":"the other day"}',
        b'{"timestamp":"+99999-01-01"}',
        b"no json",
        b"",
        None,
    ]
    rows = [("events", 0, n, moment, b"id", value, "web", None, None) for n, value in enumerate(values)]

    found = spark.createDataFrame(rows, RECORD).transform(archived)

    columns = ("type", "event", "user_id", "anonymous_id", "event_time", "day", "properties")
    parsed = [tuple(row) for row in found.orderBy("offset").select(*columns).collect()]
    last = date(2026, 1, 31)
    nothing = (None, None, None, None, None, last, None)
    assert [parsed[0][:4], parsed[0][4].astimezone(UTC), *parsed[0][5:]] == [
        ("track", "Paid", "u", "7"),
        datetime(2026, 1, 31, 23, 30, tzinfo=UTC),
        last,
        '{"price":1.5,"tags":["a","é"]}',
    ]
    assert (parsed[1][0], parsed[1][5], parsed[1][6]) == ("page", date(2026, 2, 2), None)
    assert parsed[2] == ('["no","text"]', *nothing[1:])
    assert parsed[3:] == [nothing] * 4


def test_time_of_a_cloudevent_is_its_event_time(spark: SparkSession) -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    value = b'{"type":"com.example.sold","time":"2018-04-05T17:31:00Z","timestamp":"2020-01-01"}'
    headers = [bytes([1, flags]) + b"k" * 32 for flags in (16 | 64, 16)]
    rows = [("events", 0, n, moment, b"id", value, "web", gw, None) for n, gw in enumerate(headers)]

    found = spark.createDataFrame(rows, RECORD).transform(archived).orderBy("offset")

    assert [(row["type"], row["day"]) for row in found.collect()] == [
        ("com.example.sold", date(2018, 4, 5)),
        ("com.example.sold", date(2020, 1, 1)),
    ]


def test_archive_keeps_bytes_that_are_no_text(spark: SparkSession) -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    rows = [
        ("events", 0, 0, moment, b"\xff\x00", b"\xfe{", "web", None, None),
        ("events", 0, 1, moment, None, None, None, None, None),
        ("events", 0, 2, moment, b"", b"", "", b"", b""),
    ]
    records = spark.createDataFrame(rows, RECORD)

    assertDataFrameEqual(records.transform(archived).transform(from_archive), records)


def _session(session: dict[str, Any] | None) -> tuple[str | None, str | None, Decimal | None, Decimal | None]:
    if session is None:
        return None, None, None, None
    numbers = (Decimal(session[name]) for name in ("sequence", "acknowledged_through"))
    return session["client_hash"], session["session_hash"], *numbers
