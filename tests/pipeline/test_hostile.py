"""
Claim: on the whole corpus of hostile bodies Spark and the gateway agree: what is JSON, which items are
events, and which id each has.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import httpx
import psycopg
import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dedupe.model.json_document import read_document
from dedupe.model.types import NewRecord
from pipeline.audit.checks import check_records
from pipeline.audit.deep import wrong_keys
from pipeline.audit.evaluation import collect_findings, find_faults, summarize
from pipeline.jobs.minute_counts import _counted
from pipeline.runtime.session import IcebergTable
from pipeline.schema import RECORD
from pipeline.sinks.lake import lake_sink
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sinks.publisher import GatewayTarget, publish
from pipeline.sources.records import (
    LakeSource,
    Selection,
    from_archive,
    parse_source,
    read_lake,
    read_records,
)
from pipeline.transforms.clean_topic import KEY_CHARS_MAX, archived, per_minute, sessions
from pipeline.transforms.dirty_topic import REJECTED, classify
from tests.conftest import TopicFactory
from tests.support.gateway import Gateway
from tests.support.hostile import Hostile, read_corpus
from tests.support.http import AUTH
from tests.support.postgres import Postgres
from tests.support.records import START_MS, fill_topic
from tests.support.waiting import PATIENCE_S

EVERYTHING = Selection()
MINUTE = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
NASTY_VALUES = [
    b'{"type":"\\u0000","userId":"\\u0000"}',
    b'{"type":"%s","userId":"u"}' % (b"t" * 5_000),
    b'{"type":"\\ud83d","userId":"\\ude00"}',
    b'{"type":"\xff","userId":"\xff"}',
    b'{"type":%s,"userId":%s}' % (b"9" * 5_000, b"9" * 5_000),
    b'{"type":1e999,"userId":NaN}',
    b'{"type":{"a":1},"userId":[{}]}',
    b'{"type":%s%s}' % (b"[" * 2_000, b"]" * 2_000),
    b'{"a":%s%s,"type":"late"}' % (b"[" * 2_000, b"]" * 2_000),
    b"\xff\xfe\x00",
    b"",
    None,
]
NASTY_SOURCES = ["web", "a\x00b", "s" * 5_000, None]
YEARS_US = [-1_000, 0, 253_402_300_800_000_000, 9_223_372_036_854_775_000]
"""Before the epoch, its first moment, the year 10000, and later than Python, Postgres and ISO 8601 go."""

LIMITS = {"event_too_large", "event_too_deep"}
"""Of the gateway alone; a job has to get over such an event, no more."""


def test_spark_reads_of_the_clean_stream_what_the_gateway_put_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Gateway(tmp_path / "gateway") as gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        for case in read_corpus():
            client.post("/v1/events", content=case.wire, headers=case.headers, timeout=PATIENCE_S)
        accepted = gateway.stats()["totals"]["accepted"]
        records = read_records(spark, parse_source(f"log://{gateway.data}"), EVERYTHING)
        text = F.col("value").cast("string")
        found = records.select(
            F.col("key").cast("string").alias("key"),
            F.from_json(text, "messageId string")["messageId"].alias("parsed"),
            F.try_variant_get(F.try_parse_json(text), "$.messageId", "string").alias("in_variant"),
        ).collect()
    assert len(found) == accepted > 50
    for row in found:
        assert row["key"] == row["parsed"] == row["in_variant"]


async def test_spark_judges_single_events_as_the_gateway_does(
    spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory
) -> None:
    cases = [case for case in read_corpus() if is_single(case)]
    name = await topic("hostile", configs={"retention.ms": "-1", "max.message.bytes": str(32 * 2**20)})
    lane = [NewRecord(START_MS + n, b"", case.document, []) for n, case in enumerate(cases)]
    await fill_topic(kafka_bootstrap, name, {0: lane}, batch_records=1)

    records = read_records(spark, parse_source(f"kafka://{kafka_bootstrap}/{name}"), EVERYTHING)
    rows = records.transform(classify, "web").orderBy("timestamp").collect()

    assert len(rows) == len(cases) > 50
    for case, row in zip(cases, rows, strict=True):
        if LIMITS.isdisjoint(code for _, code in case.rejected):
            is_json = is_document(case.document)
            expected = case.ids[0] if case.ids and is_json else None
            found = None if row["verdict"] == REJECTED else row["message_id"]
            assert (case.name, found) == (case.name, expected)
            assert (case.name, row["detail"] == "it is no JSON") == (case.name, not is_json)


def is_document(body: bytes) -> bool:
    """Whether a body is JSON; of another one the gateway takes the events that it finds, a job nothing."""
    try:
        read_document(body)
    except ValueError:
        return False
    return True


def is_single(case: Hostile) -> bool:
    """Whether the case is about one event, or about what is no JSON, and not about encodings or batches."""
    if case.wire != case.document or case.code not in (None, "invalid_json"):
        return False
    is_object = case.document.lstrip().startswith(b"{")
    return not is_document(case.document) or (is_object and b'"batch"' not in case.document)


@pytest.fixture(scope="module")
def nasty(spark: SparkSession) -> DataFrame:
    """Records as any producer could write them into a topic, in schema.RECORD."""
    kinds = [(value, source, us) for value in NASTY_VALUES for source in NASTY_SOURCES for us in YEARS_US]
    rows = [
        ("events", 0, offset, us, b"\x00\xff", value, source, b"g" * (offset % 100), b"p" * (offset % 80))
        for offset, (value, source, us) in enumerate(kinds)
    ]
    columns = "topic string, partition int, offset bigint, us bigint, key binary, value binary, source string"
    frame = spark.createDataFrame(rows, f"{columns}, gw binary, gs binary")
    return frame.withColumn("timestamp", F.timestamp_micros("us")).select(*RECORD.names)


@pytest.mark.regression("A record with an odd value stopped a Spark job for ever.")
def test_no_record_stops_the_counts(nasty: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger("minute-counts", 1, "log:1/events", 1, {0: (0, 1)}, {0: (0, 1)})
    ParquetFolder(str(tmp_path / "counts")).store(nasty.transform(per_minute), ledger)
    with Postgres() as server:
        sink = PostgresCounts(server.url)
        assert sink.ledger(spark) is None
        sink.store(nasty.transform(per_minute), ledger)
        with psycopg.connect(server.url) as connection:
            counts = connection.execute("SELECT source, type, events, minute FROM minute_counts").fetchall()
    assert sum(events for _, _, events, _ in counts) == nasty.count()
    stored = spark.read.parquet(f"{tmp_path}/counts").collect()
    assert {(row["source"], row["type"], row["events"], row["minute"].astimezone(UTC)) for row in stored} == {
        (source, type_, events, minute.astimezone(UTC)) for source, type_, events, minute in counts
    }
    assert {source for source, *_ in counts} == {"web", "a\ufffdb", "s" * KEY_CHARS_MAX, ""}
    assert {minute.year for *_, minute in counts} == {1970, 9999}


def test_stand_ins_are_named(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [b'{"type":"track"}', b'{"type":"a\\u0000"}', b'{"type":"%s"}' % (b"t" * 9_000), b"{}"]
    rows = [("events", 3, n, MINUTE, b"id", value, "web", None, None) for n, value in enumerate(values)]

    counts = _counted(spark.createDataFrame(rows, RECORD), has_day=False).collect()

    assert {(row["type"], row["events"]) for row in counts} == {
        (type_, 1) for type_ in ("track", "a\ufffd", "t" * KEY_CHARS_MAX, "")
    }
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "minute-counts: 1 events, one is partition 3 offset 1, count as source 'web' type 'a\ufffd'",
        f"minute-counts: 1 events, one is partition 3 offset 2, count as source 'web' type '{'t' * 40}'",
    ]


@pytest.mark.parametrize("lake_format", ["delta", "iceberg", "parquet"])
def test_archive_gives_back_every_record_as_it_was(
    lake_format: str, nasty: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    corpus = [
        ("events", 1, n, MINUTE, case.name.encode(), case.wire, "web", None, None)
        for n, case in enumerate(read_corpus())
    ]
    records = nasty.unionByName(spark.createDataFrame(corpus, RECORD))
    lake = LakeSource(lake_format, str(tmp_path / "lake"))
    for name, value in IcebergTable(lake.path).conf.items():
        spark.conf.set(name, value)
    sink = lake_sink(lake)
    assert sink.ledger(spark) is None
    sink.store(records.transform(archived), Ledger("archive", 1, "log:1/events", 1, {0: (0, 1)}, {}))

    stored = read_lake(spark, lake)

    assert sink.ledger(spark) is not None
    given = stored.transform(from_archive)
    assert records.count() == given.count() > 250
    assert records.exceptAll(given).isEmpty()
    if lake_format == "parquet":
        files = f"read_parquet('{lake.path}/**/*.parquet', hive_partitioning = true)"
        query = "SELECT count(*), count(value), sum(length(value)) FROM"
        expected = stored.select(F.count("*"), F.count("value"), F.sum(F.length("value"))).collect()[0]
        assert duckdb.execute(f"{query} {files}").fetchall() == [tuple(expected)]
        assert pyarrow.dataset.dataset(lake.path, format="parquet").to_table().num_rows == expected[0]


@pytest.mark.regression("A record with an odd value stopped every other job.")
def test_no_record_stops_the_other_jobs(nasty: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    nasty.transform(sessions, timedelta(minutes=30), timedelta(hours=2)).write.parquet(f"{tmp_path}/sessions")
    nasty.transform(classify, "web").write.parquet(f"{tmp_path}/sorted")
    checked = nasty.transform(check_records, 8)
    summaries, timeline = summarize(checked, {}, {})
    found = find_faults(checked, summaries, {})
    found |= collect_findings(wrong_keys(nasty, secret=b"s" * 16, partitions=8))

    assert spark.read.parquet(f"{tmp_path}/sorted").where(F.col("verdict") != REJECTED).count() == 0
    assert {"foreign"} <= set(found)
    assert sum(timeline.records.values()) == nasty.count()


@pytest.mark.regression("A rejected record made a conflict of the event after it.")
def test_rejected_record_does_not_make_a_conflict_of_the_event_after_it(spark: SparkSession) -> None:
    bad, good = b'{"messageId":"1","type":"\\u0000"}', b'{"messageId":"1","type":"track"}'
    rows = [("t", 0, n, MINUTE, b"", value, "web", None, None) for n, value in enumerate([bad, good, good])]
    classified = spark.createDataFrame(rows, RECORD).transform(classify, "web").orderBy("offset")
    assert [row["verdict"] for row in classified.collect()] == ["rejected", "original", "duplicate"]


def test_records_that_are_no_events_do_not_stop_what_is_posted(
    nasty: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    rows = [("t", 0, n, MINUTE, b"", b'{"messageId":"good-%d"}' % n, "web", None, None) for n in range(20)]
    bad = nasty.where((F.col("source") == "web") & (F.year("timestamp") == 1970)).where(
        ~F.col("value").contains(F.lit(b"type")) | F.col("value").isNull()
    )
    posted = bad.unionByName(spark.createDataFrame(rows, RECORD)).drop("gw", "gs")
    with Gateway(tmp_path / "gateway") as gateway:
        verdicts = publish(posted, GatewayTarget(gateway.url, {}, None, 1))
    assert (verdicts.accepted, verdicts.rejected) == (20, bad.count())
