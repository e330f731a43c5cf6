"""Claim: a topic that other producers filled is cleaned by the gateway's rules, and the rest reported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from dedupe.model.types import NewRecord
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.records import START_MS, fill_topic
from tests.support.verdict import read_sqlite

KEPT = {"retention.ms": "-1"}


@pytest.fixture
async def dirty_source(kafka_bootstrap: str, topic: TopicFactory) -> str:
    """Four events, of which two came again and one came with other content; and two that are none."""
    name = await topic("dirty", partitions=2, configs=KEPT)
    lanes = {
        0: [
            dirty(0, {"messageId": "a", "type": "track", "sentAt": "1"}),
            dirty(1, {"messageId": "b", "type": "track"}),
            dirty(2, {"type": "track", "messageId": "a", "sentAt": "2"}),
            dirty(3, {"messageId": "c", "type": "track"}),
        ],
        1: [
            dirty(5, {"messageId": "b", "type": "track"}),
            dirty(6, {"messageId": "c", "type": "page"}),
            dirty(7, {"type": "track"}),
            NewRecord(START_MS + 8, b"", b"no json", []),
            dirty(9, {"messageId": "a", "type": "track"}, source=b"app"),
        ],
    }
    await fill_topic(kafka_bootstrap, name, lanes)
    return f"kafka://{kafka_bootstrap}/{name}"


def test_dirty_topic_becomes_a_table(
    dirty_source: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "clean"

    done = job(
        *("clean", "--source", dirty_source, "--to", f"parquet://{out}"),
        *("--default-source", "web", "--report", tmp_path),
    )

    assert done.exit_code == 0, done
    originals = spark.read.parquet(f"{out}/original").collect()
    assert sorted(
        (row["source"], row["message_id"], row["partition"], row["offset"]) for row in originals
    ) == [
        ("app", "a", 1, 4),
        ("web", "a", 0, 0),
        ("web", "b", 0, 1),
        ("web", "c", 0, 3),
    ]
    conflicts = spark.read.parquet(f"{out}/conflict").collect()
    assert [(row["message_id"], row["value"]) for row in conflicts] == [
        ("c", '{"messageId":"c","type":"page"}')
    ]
    report = json.loads((tmp_path / "clean.json").read_text())
    assert (report["originals"], report["duplicate"]["count"], report["conflict"]["count"]) == (4, 2, 1)
    assert [(found["partition"], found["offset"]) for found in report["duplicate"]["first"]] == [
        (0, 2),
        (1, 0),
    ]
    assert [found["detail"] for found in report["rejected"]["first"]] == [
        "it has no messageId of 1 to 255 bytes",
        "it is no JSON",
    ]


def test_dirty_topic_goes_through_a_gateway(dirty_source: str, job: JobRunner, tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        done = job("clean", "--source", dirty_source, "--to", gateway.url, "--default-source", "web")
        again = job("clean", "--source", dirty_source, "--to", gateway.url, "--default-source", "web")
        stored = read_sqlite(gateway.data)

    assert done.exit_code == 0, done
    assert "4 accepted, 0 duplicates, 1 conflicts, 0 rejected" in done.stdout
    assert "0 accepted, 4 duplicates, 1 conflicts, 0 rejected" in again.stdout
    assert sorted(record.message_id for record in stored) == ["a", "a", "b", "c"]


def dirty(after_ms: int, event: Mapping[str, Any], source: bytes | None = None) -> NewRecord:
    headers = [] if source is None else [("source", source)]
    return NewRecord(START_MS + after_ms, b"", orjson.dumps(event), headers)
