"""
Claim: an output that goes on with another log holds each record of both once, wherever its job dies; each log
is audited by itself; nothing of the log before can be lost by what comes later.
"""

import json
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.jobs import archive as archive_job
from pipeline.runtime.erasures import KEY_VARIABLE, LIST_VARIABLE
from pipeline.schema import LOG_EPOCH
from pipeline.sinks.backfill import of_several_logs
from pipeline.sinks.ledger import Ledger, next_log
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sources.extent import CLOCK_SKEW_MAX
from pipeline.sources.origin import Origin
from pipeline.sources.records import LakeSource, Selection, read_lake
from pipeline.transforms import table_rows
from pipeline.transforms.clean_topic import archived
from tests.pipeline.conftest import Done, JobRunner
from tests.pipeline.test_exactly_once import SINKS, cut_off
from tests.pipeline.test_job_tables import Log as JobLog
from tests.pipeline.test_job_tables import Tables, die_at, identify, track
from tests.support.jobs import JobProcess
from tests.support.logs import append_to_log
from tests.support.postgres import Postgres
from tests.support.records import RecordMaker

FORMATS = ["parquet", "delta", "iceberg"]
FIRST, NEXT, LATER = range(30), range(100, 140), range(140, 150)
Rows = Counter[tuple[int, str]]


class Logs:
    """Two logs, of which the second one takes the place of the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._makers = [RecordMaker(2, step_ms=1000), RecordMaker(2, step_ms=1000)]
        self.add(0, FIRST)
        self.add(1, NEXT)

    def source(self, log: int) -> str:
        return f"log://{self._folder / str(log)}"

    def add(self, log: int, numbers: range) -> None:
        maker = self._makers[log]
        events = [maker.event(f"id-{n}", more={"userId": f"user-{n % 10}"}) for n in numbers]
        append_to_log(self._folder / str(log), maker.lanes(events))


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.fixture
def archive(logs: Logs, job: JobRunner, tmp_path: Path) -> Callable[..., Done]:
    """A function that archives one of the logs into one folder."""

    def run(log: int, lake_format: str = "delta", *more: object) -> Done:
        command = ["archive", "--source", logs.source(log), "--out", tmp_path / "out", "--once"]
        return job(*command, "--format", lake_format, *more)

    return run


@pytest.fixture
def audit(job: JobRunner, tmp_path: Path) -> Callable[..., tuple[int, dict[str, int]]]:
    """A function that audits the archive, and returns the exit code and the findings with their counts."""

    def run(lake_format: str = "delta", *more: object) -> tuple[int, dict[str, int]]:
        place = f"{lake_format}://{tmp_path / 'out'}"
        done = job("audit", "--source", place, "--window", "7d", "--report", tmp_path / "report", *more)
        report = json.loads((tmp_path / "report" / "audit.json").read_text())
        found = report["violations"] | report["notices"] | report["open_questions"]
        return done.exit_code, {kind: each["count"] for kind, each in found.items() if each["count"]}

    return run


def rows_in(spark: SparkSession, lake_format: str, out: Path) -> Rows:
    """Return how often each id of each log is in an archive."""
    rows = read_lake(spark, LakeSource(lake_format, str(out)))
    epoch = F.coalesce(F.col(LOG_EPOCH), F.lit(0))
    return Counter(map(tuple, rows.select(epoch, "message_id").collect()))


def ids(*logs: range) -> Rows:
    """Return each id of some ranges of each log once."""
    return Counter((epoch, f"id-{n}") for epoch, numbers in enumerate(logs) for n in numbers)


@pytest.mark.parametrize(
    ("lake_format", "is_stored"),
    [("delta", False), ("delta", True), ("iceberg", True), ("parquet", True)],
)
def test_first_batch_of_the_next_log_that_is_cut_off_is_stored_once(
    lake_format: str,
    is_stored: bool,
    logs: Logs,
    archive: Callable[..., Done],
    audit: Callable[..., tuple[int, dict[str, int]]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    where = ("--checkpoint", tmp_path / "checkpoint")
    done = [archive(0, lake_format, *where)]
    refused = archive(1, lake_format, *where)
    with pytest.MonkeyPatch.context() as patched:
        cut_off(patched, SINKS[lake_format], is_stored=is_stored)
        died = archive(1, lake_format, *where, "--next-topic")
    if not is_stored:
        assert rows_in(spark, lake_format, tmp_path / "out") == ids(FIRST)
        assert "--next-topic" in archive(1, lake_format, *where).stderr
    logs.add(1, LATER)
    done.append(archive(1, lake_format, *where, *([] if is_stored else ["--next-topic"])))
    back = archive(0, lake_format, "--next-topic")

    assert [d.exit_code for d in (*done, refused, died, back)] == [0, 0, 2, 2, 2], (done, refused, died)
    assert "--next-topic" in refused.stderr
    assert "the output has left log:" in back.stderr
    assert rows_in(spark, lake_format, tmp_path / "out") == ids(FIRST, range(100, 150))
    assert audit(lake_format) == (0, {"other_log": len(FIRST)})
    assert audit(lake_format, "--epoch", 0) == (0, {"other_log": 50})


@pytest.mark.slow
def test_job_that_is_killed_before_its_first_batch_leaves_the_output_as_it_was(
    logs: Logs, archive: Callable[..., Done], spark: SparkSession, tmp_path: Path
) -> None:
    assert archive(0).exit_code == 0
    command = ["archive", "--source", logs.source(1), "--out", tmp_path / "out", "--next-topic"]
    victim = JobProcess(tmp_path, *command)
    victim.wait_until_said("--next-topic was given")
    assert victim.kill() == -signal.SIGKILL, victim.said
    assert set(rows_in(spark, "delta", tmp_path / "out").values()) == {1}

    assert archive(1, "delta", "--next-topic").exit_code == 0
    assert rows_in(spark, "delta", tmp_path / "out") == ids(FIRST, NEXT)


@pytest.mark.parametrize("lake_format", FORMATS)
def test_archive_that_began_without_the_column_goes_on_with_it(
    lake_format: str,
    archive: Callable[..., Done],
    audit: Callable[..., tuple[int, dict[str, int]]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    def without_column(records: DataFrame) -> DataFrame:
        rows = archived(records)
        # Iceberg's table is made of the schema; null is what its old rows have.
        return rows.withColumn(LOG_EPOCH, F.lit(None).cast("int")) if is_iceberg else rows.drop(LOG_EPOCH)

    is_iceberg = lake_format == "iceberg"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive_job, "archived", without_column)
        assert archive(0, lake_format).exit_code == 0
    assert audit(lake_format) == (0, {})
    assert archive(1, lake_format, "--next-topic").exit_code == 0
    assert rows_in(spark, lake_format, tmp_path / "out") == ids(FIRST, NEXT)
    assert audit(lake_format) == (0, {"other_log": len(FIRST)})
    assert audit(lake_format, "--epoch", 0) == (0, {"other_log": len(NEXT)})


def test_rows_of_another_log_count_for_that_and_those_of_none_are_named(
    archive: Callable[..., Done],
    audit: Callable[..., tuple[int, dict[str, int]]],
    job: JobRunner,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    done = [archive(0), archive(1, "delta", "--next-topic")]
    table = f"delta.`{tmp_path / 'out'}`"
    copy = ["archive", "--source", f"delta://{tmp_path / 'out'}", "--out", tmp_path / "copy", "--once"]
    done.append(job(*copy, "--format", "parquet"))
    copied = f"parquet://{tmp_path / 'copy'}"
    done += [job("audit", "--source", copied, "--partitions", 2, *more) for more in ((), ("--epoch", 0))]
    local = job("audit", "--source", copied, "--partitions", 2, "--engine", "local")

    assert [d.exit_code for d in done] == [0] * 5, done
    assert rows_in(spark, "parquet", tmp_path / "copy") == ids(FIRST, NEXT)
    assert (local.exit_code, "no proof without Spark" in local.stderr) == (2, True), local

    spark.sql(f"UPDATE {table} SET log_epoch = 7 WHERE log_epoch = 1 AND partition = 0 AND offset = 3")
    exit_code, found = audit()
    assert (exit_code, found["foreign"], found["gap"]) == (1, 1, 1)
    spark.sql(f"UPDATE {table} SET log_epoch = 0 WHERE log_epoch = 7")
    assert audit()[1]["gap"] == 1
    exit_code, found = audit("delta", "--epoch", 0)
    assert (exit_code, found["order"]) == (1, 1)


def test_erasure_of_one_log_s_row_leaves_the_other_log_s_row_of_that_place(
    logs: Logs,
    archive: Callable[..., Done],
    audit: Callable[..., tuple[int, dict[str, int]]],
    job: JobRunner,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("5" * 64)
    monkeypatch.setenv(LIST_VARIABLE, str(tmp_path / "erasures"))
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "key"))
    done = [archive(0), archive(1, "delta", "--next-topic")]
    rows = read_lake(spark, LakeSource("delta", str(tmp_path / "out")))
    of_person = rows.where("user_id = 'user-3'").count()

    done.append(job("erase", "--from", f"delta://{tmp_path / 'out'}", "--user-id", "user-3"))

    assert [d.exit_code for d in done] == [0] * 3, done
    left = rows.where("user_id IS NOT NULL").count()
    assert (of_person, left) == (7, len(FIRST) + len(NEXT) - 7)
    assert audit("delta", "--epoch", 0) == (0, {"erased": 3, "other_log": len(NEXT)})
    assert audit() == (0, {"erased": 4, "other_log": len(FIRST)})
    logs.add(1, LATER)
    assert archive(1).exit_code == 0
    assert audit() == (0, {"erased": 5, "other_log": len(FIRST)})


@pytest.mark.parametrize("is_stored", [False, True])
def test_counts_in_postgres_go_on_with_the_next_log_once(
    is_stored: bool, logs: Logs, job: JobRunner, tmp_path: Path
) -> None:
    with Postgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
        command = ["minute_counts", "--to", server.url, "--checkpoint", tmp_path / "checkpoint", "--once"]

        def run(log: int, *more: str) -> int:
            return job(*command, "--source", logs.source(log), *more).exit_code

        done = [run(0), run(1)]
        with pytest.MonkeyPatch.context() as patched:
            cut_off(patched, PostgresCounts, is_stored=is_stored)
            done.append(run(1, "--next-topic"))
        done += [run(1, "--next-topic"), run(0, "--next-topic")]
        counted = connection.execute("SELECT sum(events) FROM minute_counts").fetchone()

    assert done == [0, 2, 2, 0, 2]
    assert counted == (len(FIRST) + len(NEXT),)


@pytest.mark.slow
@pytest.mark.parametrize("lake_format", FORMATS)
def test_tables_go_on_with_the_next_log_unless_a_batch_was_cut_off(
    lake_format: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    """The tables of the first log began without the column."""
    calls = [call for n in range(4) for call in (track("Seen", n=n), identify(f"u-{n}", n=n))]
    first, second = JobLog(tmp_path / "first"), JobLog(tmp_path / "second")
    out = tmp_path / "tables"

    def without_epoch(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name != LOG_EPOCH)

    def run(log: JobLog, *more: str) -> Done:
        command = ["tables", "--source", f"log://{log.data}", "--out", out, "--format", lake_format]
        return job(*command, "--once", *more)

    first.add(calls)
    with pytest.MonkeyPatch.context() as patched:
        of_type = {table: without_epoch(names) for table, names in table_rows._OF_TYPE.items()}
        patched.setattr(table_rows, "_OF_TYPE", of_type)
        patched.setattr(table_rows, "_OF_EVENT", without_epoch(table_rows._OF_EVENT))
        done = [run(first)]
    first.add(calls[:2])
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, lake_format, 2)
        died = run(first)
    second.add(calls)
    refused = run(second, "--next-topic")
    done += [run(first), run(second, "--next-topic")]
    second.add([identify("u-0", n=50)], late_ms=-3_600_000)
    done.append(run(second))

    assert [d.exit_code for d in (died, refused)] == [2, 2], (died, refused)
    assert "have a part of a batch that other tables lack" in refused.stderr
    assert [d.exit_code for d in done] == [0] * 4, done
    tables = Tables(spark, lake_format, out)
    for table in ("tracks", "seen", "identifies"):
        places = tables.rows(f"SELECT coalesce(log_epoch, 0), log_partition, log_offset FROM {table}")
        assert (table, len(set(places))) == (table, len(places))
        assert Counter(place[0] for place in places) == {0: first.rows[table], 1: second.rows[table]}
    if lake_format != "parquet":
        users = dict(tables.rows("SELECT id, n FROM users"))
        assert users == {"u-0": 50, "u-1": 1, "u-2": 2, "u-3": 3}


def test_days_that_may_be_of_both_logs_are_not_replaced(
    archive: Callable[..., Done], spark: SparkSession, tmp_path: Path
) -> None:
    days = ("--since", "2026-01-01", "--until", "2026-01-02")
    assert [archive(0).exit_code, archive(1, "delta", "--next-topic").exit_code] == [0, 0]

    refused = archive(1, "delta", *days)

    assert (refused.exit_code, "which would be lost: days after" in refused.stderr) == (2, True), refused
    assert rows_in(spark, "delta", tmp_path / "out") == ids(FIRST, NEXT)


def test_days_after_an_output_went_on_are_of_its_newest_log() -> None:
    closed_at = datetime(2026, 1, 5, 12, tzinfo=UTC)
    first = Ledger("archive", 1, "log:1/events", 1, {0: (0, 9)}, {0: (0, 9)})
    both = next_log(first, Origin("log:2/events", "events", 1, {0: 0}), closed_at)
    second = timedelta(seconds=1)

    assert of_several_logs(first, Selection(since=closed_at)) is None
    assert of_several_logs(both, Selection(since=closed_at + CLOCK_SKEW_MAX + second)) is None
    assert "log:2/events" in str(of_several_logs(both, Selection(since=closed_at + CLOCK_SKEW_MAX)))


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["sessionize", "--out", "sessions"], "No such option: --next-topic"),
        (["archive", "--out", "copy"], "--next-topic is for a topic, kafka:// or log://"),
    ],
)
def test_jobs_that_cannot_go_on_say_so(
    command: list[str], sentence: str, archive: Callable[..., Done], job: JobRunner, tmp_path: Path
) -> None:
    assert archive(0).exit_code == 0
    name, option, out = command
    done = job(
        *(name, option, tmp_path / out, "--source", f"delta://{tmp_path / 'out'}", "--once", "--next-topic")
    )
    assert (done.exit_code, sentence in done.stderr) == (2, True), done
