"""
Claim: on the whole corpus of hostile bodies Spark and the gateway agree: what is JSON, which items are
events, and which id each has.
"""

from pathlib import Path

import httpx
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dedupe.types import NewRecord
from pipeline.dirty import REJECTED, sorted_out
from pipeline.io import Span, parse_source, read_records
from tests.conftest import TopicFactory
from tests.support.gateway import Gateway
from tests.support.hostile import Hostile, read_corpus
from tests.support.http import AUTH
from tests.support.records import START_MS, fill_topic

EVERYTHING = Span()
LIMITS = {"event_too_large", "event_too_deep"}
"""Of the gateway alone; a job has to get over such an event, no more."""


def test_spark_reads_of_the_clean_stream_what_the_gateway_put_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Gateway(tmp_path / "gateway") as gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        for case in read_corpus():
            client.post("/v1/events", content=case.wire, headers=case.headers, timeout=30)
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
    rows = records.transform(sorted_out, "web").orderBy("timestamp").collect()

    assert len(rows) == len(cases) > 50
    for case, row in zip(cases, rows, strict=True):
        if LIMITS.isdisjoint(code for _, code in case.rejected):
            expected = case.ids[0] if case.ids else None
            found = None if row["verdict"] == REJECTED else row["message_id"]
            assert (case.name, found) == (case.name, expected)
            assert (case.name, row["detail"] == "it is no JSON") == (case.name, case.code == "invalid_json")


def is_single(case: Hostile) -> bool:
    """Whether the case is about one event, or about what is no JSON, and not about encodings or batches."""
    if case.wire != case.document or case.code not in (None, "invalid_json"):
        return False
    is_object = case.document.lstrip().startswith(b"{")
    return case.code is not None or (is_object and b'"batch"' not in case.document)
