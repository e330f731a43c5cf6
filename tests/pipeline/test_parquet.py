"""Claim: a Parquet folder is exact for readers that know nothing of us, at every moment of a commit."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.folder import Folder
from pipeline.schema import RECORD
from pipeline.sinks.lake import FOLDERS
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import STAGING_KEPT_S, ParquetFolder
from pipeline.transforms.clean_topic import archived

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOURS = 3


class Killed(BaseException):
    """The process is gone."""


def rows_of(spark: SparkSession, commit: int) -> DataFrame:
    """Return a batch of one record an hour."""
    records = [
        (
            "events",
            0,
            offset,
            NOON + timedelta(hours=offset % HOURS),
            b"%d" % offset,
            b"{}",
            "web",
            None,
            None,
        )
        for offset in range((commit - 1) * HOURS, commit * HOURS)
    ]
    return spark.createDataFrame(records, RECORD).transform(archived)


def ledger_of(commit: int) -> Ledger:
    end = commit * HOURS
    return Ledger("archive", commit, "log:1/events", 1, {0: (0, end)}, {0: (end - HOURS, end)})


def seen(out: Path) -> Counter[str]:
    """Return the ids that two readers find in whatever lies in the folder, if they agree."""
    if not any(out.rglob("*.parquet")):
        return Counter()
    table = pyarrow.dataset.dataset(out, format="parquet", partitioning="hive").to_table(["message_id"])
    by_duckdb = duckdb.execute(f"SELECT message_id FROM read_parquet('{out}/**/*.parquet')").fetchall()
    found = Counter(table["message_id"].to_pylist())
    assert Counter(row[0] for row in by_duckdb) == found
    return found


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A process that dies before the n-th move of a file, n being the list's number."""
    moves_left = [0]
    move = Folder.move

    def move_or_die(self: Folder, name: str, target: Folder) -> None:
        if moves_left[0] == 0:
            raise Killed
        moves_left[0] -= 1
        move(self, name, target)

    monkeypatch.setattr(Folder, "move", move_or_die)
    return moves_left


@pytest.mark.parametrize("moved", range(HOURS + 1))
def test_commit_that_was_cut_off_is_finished_by_the_next_start(
    moved: int, dying: list[int], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    dying[0] = HOURS + moved
    sink = ParquetFolder(str(out), FOLDERS)
    sink.store(rows_of(spark, 1), ledger_of(1))
    try:
        sink.store(rows_of(spark, 2), ledger_of(2))
    except Killed:
        assert moved < HOURS
    after_kill = seen(out)
    monkeypatch.undo()
    # However long the job was down.
    monkeypatch.setattr(Folder, "age_s", lambda *_: STAGING_KEPT_S + 1)

    found = ParquetFolder(str(out), FOLDERS).ledger(spark)

    assert set(after_kill.values()) == {1}
    assert len(after_kill) == HOURS + moved
    assert found == ledger_of(2)
    assert seen(out) == Counter(map(str, range(2 * HOURS)))


def test_batch_that_was_cut_off_before_its_commit_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> bool:
        raise Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "create", die)
        with pytest.raises(Killed):
            ParquetFolder(str(out), FOLDERS).store(rows_of(spark, 1), ledger_of(1))
    monkeypatch.setattr(Folder, "age_s", lambda *_: STAGING_KEPT_S + 1)

    assert seen(out) == Counter()
    assert ParquetFolder(str(out), FOLDERS).ledger(spark) is None
    assert not list(Path(f"{out}.staging").iterdir())


def test_days_can_be_deleted(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = ParquetFolder(str(out), FOLDERS)
    sink.store(rows_of(spark, 1), ledger_of(1))
    Folder(spark, str(out)).delete("dt=2026-01-01")
    sink.store(rows_of(spark, 2), ledger_of(2))

    assert ParquetFolder(str(out), FOLDERS).ledger(spark) == ledger_of(2)
    assert seen(out) == Counter(map(str, range(HOURS, 2 * HOURS)))


@pytest.mark.parametrize("ahead", [1, 5])
def test_second_writer_is_refused(ahead: int, spark: SparkSession, tmp_path: Path) -> None:
    first, second = (ParquetFolder(str(tmp_path / "out"), FOLDERS) for _ in range(2))
    for commit in range(1, ahead + 1):
        first.store(rows_of(spark, commit), ledger_of(commit))

    with pytest.raises(PipelineError, match="another job writes"):
        second.store(rows_of(spark, 1), ledger_of(1))

    assert seen(tmp_path / "out") == Counter(map(str, range(ahead * HOURS)))
    assert second.ledger(spark) == ledger_of(ahead)


def test_manifests_do_not_pile_up(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetFolder(str(tmp_path / "out"), FOLDERS)
    for commit in range(1, 6):
        sink.store(rows_of(spark, commit), ledger_of(commit))

    assert len(list((tmp_path / "out" / "_gateway").glob("*.json"))) == 2
    assert not list(Path(f"{tmp_path}/out.staging").rglob("*.parquet"))
