"""Claim: samples that a gateway notes of duplicates become rows, each once, that name their originals."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import httpx
from pyspark.sql import SparkSession

from pipeline.schema import DUPLICATES, by_day
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.http import AUTH
from tests.support.waiting import until

RETRY = {"x-retry-count": "1", "user-agent": "analytics-python/2.3.4"}


def test_samples_become_rows_that_name_their_originals(
    job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    archive, table = tmp_path / "archive", tmp_path / "duplicates"
    with Gateway(tmp_path / "gateway", {"GATEWAY_DUPLICATE_SAMPLES": "20"}) as gateway:
        events = [{"messageId": f"id-{number}", "type": "track", "event": "Seen"} for number in range(30)]
        log = f"log://{gateway.data}"
        stored = ("duplicates", "--source", f"{log}?topic=events.duplicates", "--out", table, "--once")
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            for headers, sent in ({}, [*events, events[0]]), (RETRY, events):
                assert client.post("/v1/events", json=sent, headers=headers).status_code == 200
            until(lambda: gateway.stats()["duplicate_samples"]["appended"] >= 20)
            counts = gateway.stats()["duplicate_samples"]
            first = job(*stored)
            metrics = httpx.get(f"{gateway.admin_url}/metrics").text
        again, archived = job(*stored), job("archive", "--source", log, "--out", archive, "--once")
    assert (first.exit_code, again.exit_code, archived.exit_code) == (0, 0, 0), (first, again, archived)
    assert counts == {"appended": 20, "dropped": 0, "left_out": 11}
    assert "20 samples of duplicates stored" in first.stdout
    assert 'gateway_duplicate_samples_total{result="left_out"} 11.0' in metrics

    rows = spark.read.format("delta").load(str(table)).collect()
    assert set(rows[0].asDict()) == set(by_day(DUPLICATES).names)
    assert len({row["log_offset"] for row in rows}) == len(rows) == 20
    told = Counter((row["cause"], row["library"], row["library_version"]) for row in rows)
    assert told == {("same_request", "other", ""): 1, ("retry", "analytics-python", "2.3.4"): 19}
    originals = {
        (row["partition"], row["offset"]): row
        for row in spark.read.format("delta").load(str(archive)).collect()
    }
    for row in rows:
        original = originals[row["original_partition"], row["original_offset"]]
        assert (original["message_id"], original["source"]) == (row["message_id"], row["source"])
        assert timedelta() <= row["arrived_at"] - original["timestamp"]
