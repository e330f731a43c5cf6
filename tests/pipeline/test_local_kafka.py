"""
Claim: without Spark a topic on Kafka is read as Spark reads it: committed records alone, headers that are
there once, no more than the ranges. So an audit of a clean one needs no Java.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from dedupe.model.record import HEADER_FENCE_TEST
from pipeline.errors import PipelineError
from pipeline.jobs import audit as audit_job
from pipeline.sources.extent import ranges_of
from pipeline.sources.local import open_locally
from pipeline.sources.local_kafka import read_topic
from pipeline.sources.records import KafkaSource, Selection, read_records
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.pipeline.test_proof import no_session
from tests.support.kafka import delete_records
from tests.support.records import RecordMaker, fill_topic

PARTITIONS = 2
KEPT = {"retention.ms": "-1"}
EVENTS = 40


async def filled(topic: TopicFactory, bootstrap: str, maker: RecordMaker) -> KafkaSource:
    """Fill a topic: a transaction that counts, one that does not, and one more."""
    name = await topic("local", partitions=PARTITIONS, configs=KEPT)
    events = [maker.event(f"id-{n}") for n in range(EVENTS)]
    await fill_topic(bootstrap, name, maker.lanes(events[:20]), batch_records=7)
    await fill_topic(bootstrap, name, RecordMaker(PARTITIONS).lanes(events[:9]), commit=False)
    await fill_topic(bootstrap, name, maker.lanes(events[20:]))
    return KafkaSource(bootstrap, name)


async def test_topic_is_read_as_spark_reads_it(
    kafka_bootstrap: str, topic: TopicFactory, spark: SparkSession
) -> None:
    source = await filled(topic, kafka_bootstrap, RecordMaker(PARTITIONS))
    headers: list[list[tuple[str, bytes]]] = [
        [("source", b"\xff"), ("gw", b"1")],
        [("source", b"a"), ("source", b"b"), ("gw", b"1"), ("gs", b"2")],
        [(HEADER_FENCE_TEST, b"")],
        [],
    ]
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
        for number, given in enumerate(headers):
            key, value = (b"k", None) if number else (None, b"v")
            await producer.send_and_wait(source.topic, value, key=key, headers=given, partition=0)
    ranges = ranges_of(source, Selection()) or {}

    table = pa.Table.from_batches(list(read_topic(kafka_bootstrap, source.topic, ranges, None)))

    found = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    by_spark = read_records(spark, source, Selection()).orderBy("partition", "offset").toArrow()
    expected: list[dict[str, Any]] = by_spark.cast(table.schema).to_pylist()
    assert found == expected
    assert len(found) == EVENTS + 3
    some = {0: (3, 5), 1: (4, 4)}
    table = pa.Table.from_batches(list(read_topic(kafka_bootstrap, source.topic, some, None)))
    assert [(row["partition"], row["offset"]) for row in table.to_pylist()] == [(0, 3), (0, 4)]


async def test_audit_of_a_clean_topic_needs_no_java_and_reports_the_same(
    kafka_bootstrap: str,
    topic: TopicFactory,
    job: JobRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = RecordMaker(PARTITIONS)
    source = await filled(topic, kafka_bootstrap, maker)
    reports = []
    for engine in ("spark", "local", "auto"):
        with monkeypatch.context() as without:
            if engine != "spark":
                without.setattr(audit_job, "start_session", no_session)
            done = job("audit", "--source", source, "--engine", engine, "--report", tmp_path / engine)
        assert done.exit_code == 0, done
        report = json.loads((tmp_path / engine / "audit.json").read_text())
        reports.append({name: told for name, told in report.items() if name not in ("began", "seconds")})
    assert reports[0] == reports[1] == reports[2]

    maker.skip(0)
    await fill_topic(kafka_bootstrap, source.topic, {0: [maker.record(maker.event_of(0))]})
    named = job("audit", "--source", source)
    refused = job("audit", "--source", source, "--engine", "local")
    assert (named.exit_code, refused.exit_code) == (1, 2), (named, refused)
    assert "1 x gap" in named.stdout


async def test_what_retention_has_deleted_meanwhile_is_told(
    kafka_bootstrap: str, topic: TopicFactory
) -> None:
    source = await filled(topic, kafka_bootstrap, RecordMaker(PARTITIONS))
    ranges = ranges_of(source, Selection()) or {}
    await delete_records(kafka_bootstrap, source.topic, {0: 2})

    with pytest.raises(PipelineError, match="did not hand out topic"):
        list(read_topic(kafka_bootstrap, source.topic, ranges, None))


def test_further_options_of_spark_s_consumer_need_spark() -> None:
    assert open_locally(KafkaSource("127.0.0.1:1", "t", None, (("kafka.client.rack", "a"),)), {}) is None
