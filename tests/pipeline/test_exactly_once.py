"""
Claim: whatever happens to a checkpoint, a sink holds each record once, or its job refuses to start.

The log is written by hand, so that each case takes seconds; tests/pipeline/test_archive.py has the kills.
"""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError
from pipeline.runtime.checkpoint import Checkpoint
from pipeline.schema import RECORD, SESSIONS
from pipeline.sinks.batch_writer import BatchWriter, SinkPlan
from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sources.extent import OffsetRanges
from pipeline.sources.origin import Origin
from pipeline.sources.records import LakeSource, Offsets, read_lake
from pipeline.transforms.clean_topic import archived
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log, trim_log
from tests.support.postgres import Postgres
from tests.support.records import RecordMaker

ERASE_RUNBOOK = Path(__file__).parents[2] / "docs" / "runbooks" / "erase-a-person.md"
FORMATS = ["parquet", "delta", "iceberg"]
ONE_FORMAT = ["delta"]  # where a ledger decides, which test_archive_outlives_its_checkpoint reads in all
SINKS = {"parquet": ParquetFolder, "delta": DeltaTable, "iceberg": IcebergLake}
PARTITIONS = 2


class Log:
    """A growing embedded log."""

    def __init__(self, data: Path) -> None:
        self.data, self.made = data, 0
        self._maker = RecordMaker(PARTITIONS, step_ms=1000)

    def grow(self, count: int) -> None:
        """Append so many events."""
        events = [self._maker.event(f"id-{n}") for n in range(self.made, self.made + count)]
        append_to_log(self.data, self._maker.lanes(events))
        self.made += count

    @property
    def ids(self) -> Counter[str]:
        return Counter(f"id-{n}" for n in range(self.made))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path / "log")
    made.grow(100)
    return made


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with Postgres() as server:
        yield server.url


@pytest.fixture
def archive(log: Log, job: JobRunner, tmp_path: Path) -> Callable[..., str]:
    """A function that archives the whole log, and returns the error if that was refused."""

    def run(lake_format: str, *more: object, out: str = "out", source: Path | None = None) -> str:
        command = ["archive", "--source", f"log://{source or log.data}", "--out", tmp_path / out, "--once"]
        done = job(*command, "--format", lake_format, *more)
        assert done.exit_code in (0, 2), done
        return done.stderr if done.exit_code else ""

    return run


@pytest.fixture
def held(spark: SparkSession, tmp_path: Path) -> Callable[..., Counter[str]]:
    """A function that returns the ids in an archive, by how often they are there."""

    def read(lake_format: str, out: str = "out") -> Counter[str]:
        rows = read_lake(spark, LakeSource(lake_format, str(tmp_path / out))).select("message_id").collect()
        return Counter(row[0] for row in rows)

    return read


@pytest.mark.parametrize("lake_format", FORMATS)
def test_archive_outlives_its_checkpoint(
    lake_format: str, log: Log, archive: Callable[..., str], held: Callable[..., Counter[str]], tmp_path: Path
) -> None:
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    where = ("--checkpoint", checkpoint)
    assert archive(lake_format, *where) == ""
    shutil.copytree(checkpoint, backup)
    for _ in range(2):
        log.grow(10)
        assert archive(lake_format, *where) == ""

    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    log.grow(5)
    assert archive(lake_format, *where) == ""
    assert held(lake_format) == log.ids

    shutil.rmtree(checkpoint)
    log.grow(5)
    assert archive(lake_format, *where) == ""
    assert held(lake_format) == log.ids


@pytest.mark.parametrize("moment", ["before its commit", "between its commit and the checkpoint"])
@pytest.mark.parametrize("lake_format", FORMATS)
def test_batch_that_is_cut_off_is_stored_once_by_the_next_start(
    moment: str,
    lake_format: str,
    log: Log,
    archive: Callable[..., str],
    held: Callable[..., Counter[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert archive(lake_format) == ""
    log.grow(10)
    with monkeypatch.context() as patched:
        cut_off(patched, SINKS[lake_format], is_stored=moment.startswith("between"))
        assert "the process is gone" in archive(lake_format)
    log.grow(5)

    assert archive(lake_format) == ""
    assert held(lake_format) == log.ids


@pytest.mark.parametrize("lake_format", ONE_FORMAT)
def test_checkpoint_of_another_output_is_refused_and_given_up_on_demand(
    lake_format: str, log: Log, archive: Callable[..., str], held: Callable[..., Counter[str]], tmp_path: Path
) -> None:
    where = ("--checkpoint", tmp_path / "checkpoint")
    assert archive("parquet", *where, out="first") == ""

    error = archive(lake_format, *where, out="second")
    assert "and the output at 0" in error
    assert "--recover" in error
    assert archive(lake_format, *where, "--recover", out="second") == ""

    assert held(lake_format, "second") == log.ids


@pytest.mark.parametrize("lake_format", ONE_FORMAT)
def test_output_of_another_source_is_refused(
    lake_format: str, archive: Callable[..., str], held: Callable[..., Counter[str]], log: Log, tmp_path: Path
) -> None:
    other = Log(tmp_path / "other")
    other.grow(200)
    assert archive(lake_format) == ""

    error = archive(lake_format, "--recover", source=other.data)

    assert "holds another source" in error
    assert held(lake_format) == log.ids


@pytest.mark.parametrize(
    ("there", "then"), [("parquet", "delta"), ("delta", "iceberg"), ("iceberg", "parquet")]
)
def test_output_of_another_format_is_refused(there: str, then: str, archive: Callable[..., str]) -> None:
    assert archive(there) == ""
    assert "name another output" in archive(then)


@pytest.mark.parametrize("lake_format", ONE_FORMAT)
def test_default_checkpoints_are_an_output_s_and_a_source_s_own(
    lake_format: str, log: Log, archive: Callable[..., str], held: Callable[..., Counter[str]]
) -> None:
    for out in ("one", "two"):
        assert archive(lake_format, out=out) == ""
        assert held(lake_format, out) == log.ids


@pytest.mark.parametrize("lake_format", ONE_FORMAT)
def test_retention_that_overtook_a_job_is_reported_and_accepted_on_demand(
    lake_format: str, log: Log, archive: Callable[..., str], held: Callable[..., Counter[str]]
) -> None:
    assert archive(lake_format) == ""
    before = held(lake_format)
    log.grow(100)
    reached, trimmed = before.total(), log.made
    ends = {p: sum(1 for n in range(reached) if lane_of(n) == p) for p in range(PARTITIONS)}
    for partition, end in ends.items():
        trim_log(log.data, partition, end + 5)

    error = archive(lake_format)
    assert f"retention deleted the offsets {ends[0]} to {ends[0] + 4} of partition 0" in error
    assert "--accept-loss" in error
    assert archive(lake_format, "--accept-loss") == ""

    after = held(lake_format)
    assert after.total() == trimmed - 5 * PARTITIONS
    assert set(after.values()) == {1}
    log.grow(3)
    assert archive(lake_format) == ""


def test_person_is_erased_as_the_runbook_says_and_the_audit_stays_clean(
    log: Log, job: JobRunner, archive: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    assert archive("delta") == ""
    table = LakeSource("delta", str(tmp_path / "out"))
    (user,) = read_lake(spark, table).select("user_id").first() or ("",)
    sql = ERASE_RUNBOOK.read_text().split("```sql\n")[1].split("```")[0]
    for name, value in (("<lake/events>", table.path), ("<u-1>", user), ("<a-1>", "nobody")):
        sql = sql.replace(name, value)

    spark.sql(sql)

    rows = read_lake(spark, table)
    assert rows.count() == log.made
    assert rows.where((F.col("user_id") == user) | F.col("value").contains(f'"{user}"')).isEmpty()
    assert job("audit", "--source", table).exit_code == 0
    log.grow(3)
    assert archive("delta") == ""


def test_table_of_the_user_s_own_catalog_is_named(
    log: Log, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    catalog = "spark.sql.catalog.lakehouse"
    conf = ["--conf", f"{catalog}=org.apache.iceberg.spark.SparkCatalog", "--conf", f"{catalog}.type=hadoop"]
    conf += ["--conf", f"{catalog}.warehouse={tmp_path}/warehouse"]
    name = "table:lakehouse.web.clean-events"
    command: list[object] = ["archive", "--source", f"log://{log.data}", "--out", name, "--once", *conf]
    command += ["--format", "iceberg", "--checkpoint", tmp_path / "checkpoint"]

    done = [job(*command)]
    log.grow(10)
    done.append(job(*command))
    done.append(job("compact", "--source", f"iceberg://{name}", *conf))
    shutil.rmtree(tmp_path / "checkpoint")
    done.append(job(*command))
    done.append(job("audit", "--source", f"iceberg://{name}", *conf))

    assert [d.exit_code for d in done] == [0] * 5, done
    assert spark.table("lakehouse.web.`clean-events`").count() == log.made


def test_counts_outlive_their_checkpoint(log: Log, job: JobRunner, postgres: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    command: list[object] = ["minute_counts", "--source", f"log://{log.data}", "--to", postgres, "--once"]
    command += ["--checkpoint", checkpoint]
    done = [job(*command)]
    backup = shutil.copytree(checkpoint, tmp_path / "backup")
    log.grow(10)
    done.append(job(*command))

    shutil.rmtree(checkpoint)
    done.append(job(*command))
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    log.grow(10)
    done.append(job(*command))

    assert [d.exit_code for d in done] == [0] * 4, done
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT sum(events) FROM minute_counts").fetchone() == (log.made,)
        connection.execute("TRUNCATE minute_counts, minute_counts_ledger")
    emptied = job(*command)
    assert emptied.exit_code == 2
    assert "--recover" in emptied.stderr


@pytest.mark.parametrize("is_stored", [False, True])
def test_counts_of_a_batch_that_is_cut_off_are_stored_once(
    is_stored: bool, log: Log, job: JobRunner, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("DROP TABLE IF EXISTS minute_counts, minute_counts_ledger")
    command: list[object] = ["minute_counts", "--source", f"log://{log.data}", "--to", postgres, "--once"]
    command += ["--checkpoint", tmp_path / "checkpoint"]
    with monkeypatch.context() as patched:
        cut_off(patched, PostgresCounts, is_stored=is_stored)
        dead = job(*command)
    done = job(*command)

    assert (dead.exit_code, done.exit_code) == (2, 0), (dead, done)
    assert ("is stored already, by an earlier run" in done.stderr) == is_stored
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT sum(events) FROM minute_counts").fetchone() == (log.made,)


def test_sessions_without_the_checkpoint_that_knows_their_state_are_refused(
    log: Log, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "sessions"
    command: list[object] = ["sessionize", "--source", f"log://{log.data}", "--out", out, "--once"]
    command += ["--checkpoint", checkpoint, "--gap", "1s", "--lateness", "1s"]
    first = job(*command)
    backup = shutil.copytree(checkpoint, tmp_path / "backup")
    log.grow(100)
    second = job(*command)
    stored = spark.read.schema(SESSIONS).parquet(str(out)).count()

    shutil.rmtree(checkpoint)
    lost = job(*command, "--recover")
    shutil.copytree(backup, checkpoint)
    restored = job(*command)

    assert (first.exit_code, second.exit_code) == (0, 0), (first, second)
    assert stored > 50
    assert (lost.exit_code, restored.exit_code) == (2, 2), (lost, restored)
    assert "name another output to begin anew" in restored.stderr
    assert "whose state this job needs" in lost.stderr
    assert spark.read.schema(SESSIONS).parquet(str(out)).count() == stored


def no_ends(_: OffsetRanges) -> Offsets:
    return {}


@pytest.mark.regression("A sink that was ahead by several batches stored rows twice.")
def test_sink_ahead_by_several_batches_takes_of_each_what_it_lacks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One partition is ahead by half a batch more than two, the other one by a batch more."""
    plan = [{0: 10, 1: 10}, {0: 20, 1: 20}, {0: 30, 1: 30}, {0: 40, 1: 40}, {0: 50, 1: 50}]
    (tmp_path / "offsets").mkdir()
    for number, ends in enumerate(plan):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(ends)}")
    held = {0: (0, 25), 1: (0, 35)}
    ledger = Ledger("archive", 1, "log:1/events", 2, held, held)
    origin = Origin("log:1/events", "events", 2, {0: 0, 1: 0})
    sink = ParquetFolder(str(tmp_path / "out"))
    plan_of_sink = SinkPlan(sink, archived)
    writer = BatchWriter("archive", Checkpoint(str(tmp_path)), origin, plan_of_sink, ledger, no_ends)

    for number in range(len(plan)):
        places = itertools.product((0, 1), range(10 * number, 10 * number + 10))
        rows = [("events", *place, None, b"id", b"{}", "web", None, None) for place in places]
        writer(spark.createDataFrame(rows, RECORD), number)

    found = spark.read.parquet(sink.path).select("partition", "offset").collect()
    assert sorted(tuple(row) for row in found) == [
        (partition, offset) for partition, (_, end) in held.items() for offset in range(end, 50)
    ]


def test_batch_whose_offsets_are_unknown_is_not_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    origin = Origin("log:1/events", "events", 1, {0: 0})
    plan = SinkPlan(ParquetFolder(str(tmp_path / "out")), archived)
    writer = BatchWriter("archive", Checkpoint(str(tmp_path / "none")), origin, plan, None, no_ends)

    with pytest.raises(PipelineError, match="does not say where batch 7 ends"):
        writer(spark.createDataFrame([], RECORD), 7)


def cut_off(patched: pytest.MonkeyPatch, sink: Any, *, is_stored: bool) -> None:
    """Let a sink's job die in the middle of a batch, before or after the sink has stored it."""
    store = sink.store

    def die(self: Any, rows: DataFrame, ledger: Ledger) -> None:
        if is_stored:
            store(self, rows, ledger)
        raise RuntimeError("the process is gone")

    patched.setattr(sink, "store", die)


def lane_of(number: int) -> int:
    return RecordMaker(PARTITIONS).event(f"id-{number}").partition
