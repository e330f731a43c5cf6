"""Claim: an archive holds every committed record once, in every format, also when the job is killed."""

import asyncio
import json
import shlex
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dedupe.model.types import Event
from pipeline.schema import ARCHIVE
from pipeline.sources.records import LakeSource, read_lake
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.jobs import JobProcess, kill_at_work
from tests.support.kafka import create_topic, delete_records, delete_topics
from tests.support.processes import HOST, free_port
from tests.support.records import RecordMaker, fill_topic, open_transaction

FORMATS = ["delta", "iceberg", "parquet"]
PARTITIONS = 2
KEPT = {"retention.ms": "-1"}
OVERTAKEN_TIMEOUT_S = 240.0
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbooks" / "retention-overtook.md"
SEED = 5


@pytest.mark.parametrize("lake_format", FORMATS)
async def test_archive_holds_what_is_committed_and_only_that(
    lake_format: str,
    job: JobRunner,
    spark: SparkSession,
    kafka_bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    name = await topic("archive", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS, step_ms=60_000)
    out = tmp_path / "events"
    command = ["archive", "--source", f"kafka://{kafka_bootstrap}/{name}", "--out", out, "--once"]
    command += ["--format", lake_format, "--batch-offsets", "150"]
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 0, 200)))
    first = job(*command)
    await fill_topic(kafka_bootstrap, name, RecordMaker().lanes(events(maker, 900, 950)), commit=False)
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 200, 300)))
    second = job(*command)

    assert (first.exit_code, second.exit_code) == (0, 0), (first, second)
    stored = read_lake(spark, LakeSource(lake_format, str(out)))
    assert sorted(row["message_id"] for row in stored.select("message_id").collect()) == sorted(
        f"id-{n}" for n in range(300)
    )
    assert stored.columns == ARCHIVE.names
    assert {(row["dt"], row["hr"]) for row in stored.select("dt", "hr").distinct().collect()} == {
        ("2026-01-01", f"{hour:02}") for hour in range(6)
    }

    audited = job("audit", "--source", f"{lake_format}://{out}", "--report", tmp_path)
    assert audited.exit_code == 0, audited
    assert json.loads((tmp_path / "audit.json").read_text())["records"] == 300


@pytest.mark.slow
async def test_archive_is_exact_after_a_kill(
    job: JobRunner, spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """With kill -9 once, on Kafka; tests/pipeline/test_exactly_once.py lets every format's commit fail."""
    name = await topic("killed", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS)
    lanes = maker.lanes(events(maker, 0, 10_000))
    await fill_topic(kafka_bootstrap, name, lanes)
    source, out = f"kafka://{kafka_bootstrap}/{name}", tmp_path / "events"
    command: list[object] = ["archive", "--source", source, "--out", out, "--once", "--batch-offsets", 500]

    kill_at_work(tmp_path, command, seed=SEED)
    before = read_lake(spark, LakeSource("delta", str(out))).count()
    done = job(*command, "--batch-offsets", 5000)

    assert 0 < before < 10_000
    assert done.exit_code == 0, done
    stored = read_lake(spark, LakeSource("delta", str(out)))
    sequences = stored.select("partition", F.conv(F.hex(F.substring("gw", 27, 8)), 16, 10).alias("seq"))
    assert totals(sequences) == {
        lane: (len(records), len(records), sum(range(len(records)))) for lane, records in lanes.items()
    }


@pytest.mark.slow
async def test_terminated_job_finishes_its_batch_and_goes_on_later(
    kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path, job: JobRunner, spark: SparkSession
) -> None:
    name = await topic("terminated", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS)
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 0, 1000)))
    source, out = f"kafka://{kafka_bootstrap}/{name}", tmp_path / "events"
    command = ["archive", "--source", source, "--out", out]

    port = free_port()
    running = JobProcess(tmp_path, *command, "--interval", "1s", "--metrics-port", port)
    running.wait_for_batches(1)
    async with httpx.AsyncClient() as client:
        metrics = (await client.get(f"http://{HOST}:{port}/metrics")).text
    exit_code = running.terminate()
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 1000, 1100)))
    done = job(*command, "--once", "--metrics-file", tmp_path / "archive.prom")

    assert exit_code == 0, running.said
    assert 'pipeline_rows_total{job="archive"} 1000.0' in metrics
    assert 'pipeline_lag_offsets{job="archive"} 0.0' in metrics
    for number in range(PARTITIONS):
        assert f'pipeline_partition_lag_offsets{{job="archive",partition="{number}"}} 0.0' in metrics
    assert "_created" not in metrics
    written = (tmp_path / "archive.prom").read_text()
    assert 'pipeline_rows_total{job="archive"} 100.0' in written
    assert 'pipeline_heartbeat_timestamp_seconds{job="archive"}' in written
    assert (done.exit_code, done.stdout.split()[0]) == (0, "100"), done
    assert read_lake(spark, LakeSource("delta", str(out))).count() == 1100


@pytest.mark.parametrize("lake_format", FORMATS)
async def test_topic_made_anew_under_its_name_is_another_source_that_an_output_takes_on_demand(
    lake_format: str,
    job: JobRunner,
    spark: SparkSession,
    kafka_bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """Its ids begin at 15, so 5 were in the topic before, too; one more partition."""
    name = await topic("again", configs=KEPT)
    maker = RecordMaker(1)
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 0, 20)))
    source, out = f"kafka://{kafka_bootstrap}/{name}", tmp_path / "a"
    command = ["archive", "--source", source, "--out", out, "--once", "--format", lake_format]
    command += ["--checkpoint", tmp_path / "checkpoint"]
    counts = ["minute_counts", "--source", source, "--to", f"parquet://{tmp_path / 'counts'}", "--once"]
    first = [job(*command), job(*counts)]
    await delete_topics(kafka_bootstrap, [name])
    await create_topic(kafka_bootstrap, name, partitions=2, configs=KEPT)
    maker = RecordMaker(2)
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 15, 60)))

    refused = job(*command)
    done = [job(*command, "--next-topic", "--batch-offsets", "20"), job(*counts, "--next-topic")]
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 60, 70)))
    done += [job(*command), job(*counts)]

    assert [d.exit_code for d in (*first, refused, *done)] == [0, 0, 2, 0, 0, 0, 0], (first, refused, done)
    assert "the output holds another source, kafka:" in refused.stderr
    assert "--next-topic" in refused.stderr
    assert "whose partitions it has up to the offsets 0:" in done[0].stderr
    stored = read_lake(spark, LakeSource(lake_format, str(out)))
    rows = stored.select("log_epoch", "message_id").collect()
    assert Counter(map(tuple, rows)) == Counter(
        [(0, f"id-{n}") for n in range(20)] + [(1, f"id-{n}") for n in range(15, 70)]
    )
    counted = spark.read.parquet(str(tmp_path / "counts")).agg(F.sum("events")).collect()
    assert counted[0][0] == len(rows)
    archive = f"{lake_format}://{out}"
    audits = [
        (job("audit", "--source", archive, "--report", tmp_path, *more), notices(tmp_path))
        for more in (["--window", "7d"], ["--epoch", "0"], ["--against", source])
    ]
    assert [(done.exit_code, found) for done, found in audits] == [
        (0, {"other_log": 20, "in_earlier_log": 5}),
        (0, {"other_log": 55}),
        (0, {"other_log": 20, "in_earlier_log": 5}),
    ], audits
    assert "everything of log_epoch 0 that its ledger lists in 1 partitions" in audits[1][0].stdout
    missing = job("audit", "--source", archive, "--epoch", "2")
    assert (missing.exit_code, "newest log_epoch is 1" in missing.stderr) == (2, True), missing


async def test_archive_behind_an_open_transaction_says_so(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("stalled", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS)
    lanes = maker.lanes(events(maker, 0, 100))
    hung = await open_transaction(kafka_bootstrap, name, 0, lanes[0])
    source = f"kafka://{kafka_bootstrap}/{name}"

    done = job("archive", "--source", source, "--out", tmp_path / "events", "--once")

    await hung.abort_transaction()
    await hung.stop()
    assert done.exit_code == 2, done
    assert "partition 0 is stalled: an open transaction at offset 0" in done.stderr


async def test_retention_that_overtakes_a_job_at_work_ends_it_with_the_way_out(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """Its runbook's commands are run as they stand there."""
    name = await topic("overtaken", configs=KEPT)
    maker = RecordMaker(1)
    await fill_topic(kafka_bootstrap, name, maker.lanes(events(maker, 0, 2000)))
    out = tmp_path / "events"
    options = [
        "--source",
        f"kafka://{kafka_bootstrap}/{name}",
        "--out",
        str(out),
        "--format",
        "parquet",
        "--once",
    ]

    def overtake() -> None:
        deadline = time.monotonic() + OVERTAKEN_TIMEOUT_S
        while not any((out / "_gateway").glob("*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        asyncio.run(delete_records(kafka_bootstrap, name, {0: 1900}))

    retention = threading.Thread(target=overtake)
    retention.start()
    at_work = job("archive", *options, "--batch-offsets", 100)
    retention.join()
    later = job("archive", *options)
    go_on, look = (
        shlex.split(line.replace("...", shlex.join(options)).replace("delta://OUT", f"parquet://{out}"))
        for line in RUNBOOK.read_text().splitlines()
        if line.strip().startswith("python -m pipeline")
    )
    assert go_on[:3] == look[:3] == ["python", "-m", "pipeline"]
    gone_on, looked = job(*go_on[3:]), job(*look[3:])
    after = job("archive", *options)

    for refused in (at_work, later):
        assert refused.exit_code == 2, refused
        error = refused.stderr.splitlines()[-1]
        assert error.startswith("pipeline: retention deleted the offsets "), refused
        assert "to 1899 of partition 0" in error
        assert "--accept-loss" in error
    assert gone_on.exit_code == 0, gone_on
    assert (looked.exit_code, "gap" in looked.stdout) == (1, True), looked
    assert after.exit_code == 0, after


def events(maker: RecordMaker, first: int, end: int) -> list[Event]:
    """Return the events id-first to id-(end - 1)."""
    return [maker.event(f"id-{n}") for n in range(first, end)]


def notices(folder: Path) -> dict[str, int]:
    """Return how many records of each notice the report of an audit has."""
    found = json.loads((folder / "audit.json").read_text())["notices"]
    return {kind: notice["count"] for kind, notice in found.items()}


def totals(sequences: DataFrame) -> dict[int, tuple[int, int, int]]:
    """Return per partition the rows, the distinct ones, and their sum."""
    seq = F.col("seq").cast("bigint")
    rows = sequences.groupBy("partition").agg(F.count(seq), F.count_distinct(seq), F.sum(seq)).collect()
    return {row[0]: (row[1], row[2], row[3]) for row in rows}
