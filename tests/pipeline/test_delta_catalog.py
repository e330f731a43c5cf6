"""Claim: Delta tables have names in Spark's catalog as Iceberg's have; what is wrong with a name is told."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.schema import ARCHIVE
from pipeline.sinks.delta import DeltaTable
from pipeline.sources.records import LakeSource, read_lake
from tests.pipeline.conftest import Done, JobRunner
from tests.pipeline.test_job_tables import FIRST, SECOND
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

ROWS = 20
DAY_MS = 86_400_000


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A schema of the session's catalog, in a folder of the test."""
    spark.sql(f"CREATE SCHEMA web LOCATION '{tmp_path}/web'")
    yield "web"
    spark.sql("DROP SCHEMA web CASCADE")


class Log:
    """A log, and the jobs that read it."""

    def __init__(self, folder: Path, job: JobRunner) -> None:
        self.data, self.made = folder / "log", 0
        self._folder, self._job = folder, job
        self._maker = RecordMaker(2, step_ms=DAY_MS // (2 * ROWS))

    def grow(self, count: int = ROWS) -> None:
        events = [self._maker.event(f"id-{n}") for n in range(self.made, self.made + count)]
        append_to_log(self.data, self._maker.lanes(events))
        self.made += count

    def job(self, name: str, *options: object, checkpoint: str = "checkpoint") -> Done:
        source = ("--source", f"log://{self.data}")
        return self._job(name, *source, *options, "--checkpoint", self._folder / f"{name}-{checkpoint}")


@pytest.fixture
def log(tmp_path: Path, job: JobRunner) -> Log:
    made = Log(tmp_path, job)
    made.grow()
    return made


@pytest.mark.parametrize("name", ["table:spark_catalog.web.events", "table:web.events"])
def test_named_table_is_archived_into_compacted_replaced_and_audited(
    name: str, schema: str, log: Log, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    """Only its name connects its second start with the first."""
    done = [log.job("archive", "--out", name, "--once", checkpoint="first")]
    log.grow()
    done.append(log.job("archive", "--out", name, "--once", checkpoint="second"))
    lake = LakeSource("delta", name)
    done.append(job("audit", "--source", lake))
    done.append(job("compact", "--source", lake, "--before", "9999-01-01"))
    spark.sql("DELETE FROM web.events WHERE dt = '2026-01-01'")
    days = ("--since", "2026-01-01", "--until", "2026-01-02")
    done.append(log.job("archive", "--out", name, *days))
    counts = ("--to", "delta://table:web.counts", "--checkpoint", tmp_path / "counts")
    done.append(job("minute_counts", "--source", lake, *counts, "--once"))
    log.grow()
    done.append(log.job("archive", "--out", name, "--once", checkpoint="second"))
    done.append(job("minute_counts", "--source", lake, *counts, "--once"))
    done.append(job("audit", "--source", lake))

    assert [d.exit_code for d in done] == [0] * len(done), done
    stored = read_lake(spark, lake)
    assert stored.columns == ARCHIVE.names
    assert Counter(row[0] for row in stored.select("message_id").collect()) == Counter(
        f"id-{n}" for n in range(log.made)
    )
    assert spark.table("web.counts").selectExpr("sum(events)").collect()[0][0] == log.made
    assert (tmp_path / "web" / "events" / "_delta_log").is_dir()


def test_tables_have_names_in_a_schema(
    schema: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    maker = RecordMaker(2)
    command = ("tables", "--source", f"log://{tmp_path}/log", "--out", f"table:{schema}", "--once")
    done = []
    for first, batch in ((0, FIRST), (len(FIRST), SECOND)):
        events = [maker.event(f"id-{first + n}", more=event) for n, event in enumerate(batch)]
        append_to_log(tmp_path / "log", maker.lanes(events))
        done.append(job(*command, "--checkpoint", tmp_path / f"checkpoint-{first}"))
    erased = job(
        *("erase", "--from", f"delta://table:{schema}", "--user-id", "v"),
        *("--erasures", tmp_path / "list", "--erasure-key-file", key_file(tmp_path)),
    )

    assert [d.exit_code for d in (*done, erased)] == [0] * 3, (done, erased)
    totals = spark.table("web.order_completed").select("total", "id").orderBy("total").collect()
    assert [row["total"] for row in totals] == [10.0, 11.0, 12.5]
    users = spark.table("web.users").select("id", "plan").collect()
    assert [tuple(row) for row in users] == [("u", "paid")]
    assert {row["tableName"] for row in spark.sql("SHOW TABLES IN web").collect()} >= {"loads", "tracks"}


def key_file(folder: Path) -> Path:
    path = folder / "erasure.key"
    path.write_text("k" * 64)
    return path


def test_table_that_a_killed_job_had_made_is_gone_on_with(
    schema: str, log: Log, job: JobRunner, spark: SparkSession
) -> None:
    DeltaTable("table:web.events", ("dt", "hr"))._create(spark, ARCHIVE)
    done = log.job("archive", "--out", "table:web.events", "--once")
    assert done.exit_code == 0, done
    assert spark.table("web.events").count() == ROWS


def parquet_table(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE web.events (id int) USING parquet")


def view(spark: SparkSession) -> None:
    spark.sql("CREATE VIEW web.events AS SELECT 1 AS id")


def delta_of_others(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE web.events USING delta AS SELECT 1 AS id")


def nothing(spark: SparkSession) -> None:
    pass


@pytest.mark.parametrize(
    ("there", "out", "options", "sentence"),
    [
        (parquet_table, "table:web.events", (), "table:web.events is no Delta table: name another output"),
        (view, "table:web.events", (), "table:web.events is no Delta table: name another output"),
        (delta_of_others, "table:web.events", (), "has no ledger of this job: name another output"),
        (nothing, "table:lost.web.events", (), "there is no catalog lost: --conf spark.sql.catalog.lost=..."),
        (nothing, "table:lost.events", (), "there is no schema lost: make it first"),
        (
            nothing,
            "table:lost.web.events",
            ("--format", "iceberg"),
            "there is no catalog lost: --conf spark.sql.catalog.lost=...",
        ),
        (nothing, "table:web.events", ("--format", "parquet"), "it needs --format delta or iceberg"),
    ],
)
def test_what_is_wrong_with_a_name_is_told_in_a_sentence(
    there: Callable[[SparkSession], None],
    out: str,
    options: tuple[str, ...],
    sentence: str,
    schema: str,
    log: Log,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    there(spark)
    done = log.job("archive", "--out", out, "--once", *options)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    shutil.rmtree(tmp_path / "web" / "events", ignore_errors=True)
