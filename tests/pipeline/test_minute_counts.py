"""Claim: counts per minute are exact in Postgres and in Parquet, also when the job is killed."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from dedupe.model.types import NewRecord
from pipeline.errors import PipelineError
from pipeline.schema import MINUTE_COUNTS, RECORD
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.postgres import PostgresCounts
from pipeline.transforms.clean_topic import per_minute
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.jobs import kill_at_work
from tests.support.logs import append_to_log
from tests.support.postgres import Postgres
from tests.support.records import RecordMaker, fill_topic

PARTITIONS = 2
KEPT = {"retention.ms": "-1"}
SEED = 5
TYPES = ("track", "page", "identify")
MINUTE = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a server of these tests' own."""
    with Postgres() as server:
        yield server.url


@pytest.fixture
def database(postgres: str) -> str:
    """The address of an empty database."""
    name = f"counts_{random.SystemRandom().randrange(10**9)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgres.rpartition('/')[0]}/{name}"


def test_records_are_counted_by_minute_source_and_type(spark: SparkSession) -> None:
    def row(second: int, source: str | None, value: bytes) -> tuple[Any, ...]:
        return ("events", 0, second, MINUTE.replace(second=second), b"id", value, source, None, None)

    records = [
        row(0, "web", b'{"type":"track"}'),
        row(59, "web", b'{"type":"track","properties":{"type":"page"}}'),
        row(1, "app", b'{"type":"page"}'),
        row(2, None, b"no json"),
    ]

    found = spark.createDataFrame(records, RECORD).transform(per_minute).select(*MINUTE_COUNTS.names)

    expected = [(MINUTE, "web", "track", 2), (MINUTE, "app", "page", 1), (MINUTE, "", "", 1)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, MINUTE_COUNTS))


def test_second_writer_of_a_commit_is_refused(spark: SparkSession, database: str) -> None:
    record = ("events", 0, 0, MINUTE, b"id", b'{"type":"track"}', "web", None, None)
    counts = spark.createDataFrame([record], RECORD).transform(per_minute)
    sink = PostgresCounts(database)
    assert sink.ledger(spark) is None
    first, second = (Ledger("minute-counts", n, "log", 1, {0: (0, n)}, {0: (n - 1, n)}) for n in (1, 2))

    sink.store(counts, first)
    with pytest.raises(PipelineError, match="another job"):
        sink.store(counts, first)
    sink.store(counts, second)
    with pytest.raises(PipelineError, match="another job"):
        sink.store(counts, second)

    assert sink.ledger(spark) == second
    assert counted(database) == {(MINUTE, "web", "track"): 2}


@pytest.mark.slow
async def test_counts_in_postgres_are_exact_after_a_kill(
    job: JobRunner, database: str, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("counted", partitions=PARTITIONS, configs=KEPT)
    lanes = typed_lanes(10_000)
    await fill_topic(kafka_bootstrap, name, lanes)

    command: list[object] = ["minute_counts", "--source", f"kafka://{kafka_bootstrap}/{name}"]
    command += ["--to", database, "--checkpoint", tmp_path / "checkpoint", "--once"]
    kill_at_work(tmp_path, [*command, "--batch-offsets", 500], seed=SEED)
    before = sum(counted(database).values())
    done = job(*command)

    assert 0 < before < 10_000
    assert done.exit_code == 0, done
    assert counted(database) == expected_of(lanes)


async def test_counts_in_parquet_sum_up_over_batches(
    job: JobRunner, spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("counted", partitions=PARTITIONS, configs=KEPT)
    lanes = typed_lanes(600)
    await fill_topic(kafka_bootstrap, name, lanes, batch_records=100)
    out = tmp_path / "counts"

    source = f"kafka://{kafka_bootstrap}/{name}"
    done = job(
        "minute_counts", "--source", source, "--to", f"parquet://{out}", "--once", "--batch-offsets", 250
    )

    assert done.exit_code == 0, done
    found = spark.read.parquet(str(out)).groupBy("minute", "source", "type").sum("events").collect()
    assert len(list(out.glob("*.parquet"))) >= 2
    assert {(row[0].astimezone(UTC), row[1], row[2]): row[3] for row in found} == expected_of(lanes)


def test_postgres_that_is_not_there_is_one_sentence(job: JobRunner, tmp_path: Path) -> None:
    append_to_log(tmp_path, {0: []})
    done = job(
        "minute_counts",
        "--source",
        f"log://{tmp_path}",
        "--to",
        "postgresql://127.0.0.1:1/x",
        "--checkpoint",
        tmp_path / "checkpoint",
    )

    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("pipeline: Postgres refused: ")


def typed_lanes(count: int) -> dict[int, list[NewRecord]]:
    maker = RecordMaker(PARTITIONS, step_ms=20)
    return maker.lanes(maker.event(f"id-{n}", type_=TYPES[n % 3]) for n in range(count))


def expected_of(lanes: dict[int, list[NewRecord]]) -> dict[tuple[datetime, str, str], int]:
    return dict(
        Counter(
            (
                datetime.fromtimestamp(record.timestamp_ms // 60_000 * 60, UTC),
                "web",
                next(type_ for type_ in TYPES if f'"type":"{type_}"'.encode() in record.value),
            )
            for records in lanes.values()
            for record in records
        )
    )


def counted(database: str) -> dict[tuple[datetime, str, str], int]:
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT minute, source, type, events FROM minute_counts").fetchall()
    return {(minute.astimezone(UTC), source, type_): events for minute, source, type_, events in rows}
