"""
Claim: compaction makes few files of many beside the archive job, touches only what is new, and an audit
finds the same records in them.
"""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from pipeline.runtime.session import IcebergTable
from pipeline.sinks.lake import lake_sink
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.records import LakeSource, read_lake
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

FORMATS = ["parquet", "delta", "iceberg"]
BATCHES, ROWS = 2, 20


class Archive:
    """An archive that grows by a batch of small files at a time."""

    def __init__(self, folder: Path, job: JobRunner, lake_format: str) -> None:
        self.lake = LakeSource(lake_format, str(folder / "loose"))
        self.made = 0
        self._data, self._job, self._maker = folder / "log", job, RecordMaker(2)

    def grow(self) -> None:
        """Archive one more batch."""
        events = [self._maker.event(f"id-{n}") for n in range(self.made, self.made + ROWS)]
        append_to_log(self._data, self._maker.lanes(events))
        self.made += ROWS
        command = ("archive", "--source", f"log://{self._data}", "--out", self.lake.path, "--once")
        done = self._job(*command, "--format", self.lake.format)
        assert done.exit_code == 0, done

    @property
    def ids(self) -> Counter[str]:
        return Counter(f"id-{n}" for n in range(self.made))


@pytest.fixture(params=FORMATS)
def archive(request: pytest.FixtureRequest, job: JobRunner, tmp_path: Path) -> Archive:
    made = Archive(tmp_path, job, request.param)
    for _ in range(BATCHES):
        made.grow()
    return made


def test_small_files_are_merged_beside_the_job(
    archive: Archive, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    is_copied = archive.lake.format == "parquet"
    tight = LakeSource("parquet", str(tmp_path / "tight")) if is_copied else archive.lake
    command = ("compact", "--source", archive.lake, *(("--out", tight.path) if is_copied else ()))
    files_before = files_of(spark, archive.lake)

    first = job(*command)
    merged = files_of(spark, tight)
    again = job(*command, "--keep", "1d")

    assert (first.exit_code, again.exit_code) == (0, 0), (first, again)
    assert len(files_before) >= BATCHES
    assert len(merged) == 1
    assert files_of(spark, tight) == merged
    audited = job("audit", "--source", tight, "--partitions", 2)  # a copy's ledger lists no offsets
    assert audited.exit_code == 0, audited
    assert f"{archive.made} records in 2 partitions" in audited.stdout

    archive.grow()
    assert ids_in(spark, archive.lake) == archive.ids


@pytest.mark.parametrize("archive", ["delta", "iceberg"], indirect=True)
def test_files_that_no_longer_count_are_deleted(archive: Archive, spark: SparkSession) -> None:
    sink = lake_sink(archive.lake)
    assert not isinstance(sink, ParquetFolder)
    sink.compact(spark, before="9999-01-01", keep=timedelta(0))

    there = {path.name for path in Path(archive.lake.path).rglob("*.parquet") if "_log" not in str(path)}
    kept = {name.rpartition("/")[2] for name in files_of(spark, archive.lake)}
    if archive.lake.format == "delta":
        assert there == kept
    assert kept <= there
    assert ids_in(spark, archive.lake) == archive.ids


@pytest.mark.regression("Compaction deleted files of a batch that was being written.")
def test_files_of_a_batch_under_way_are_not_to_be_deleted(job: JobRunner, tmp_path: Path) -> None:
    done = job("compact", "--source", f"delta://{tmp_path}", "--keep", "23h")
    assert (done.exit_code, "--keep is shorter than 1d" in done.stderr) == (2, True)


@pytest.mark.parametrize("out", ["loose", "./loose/", "loose/below", "."])
def test_copy_onto_its_own_source_is_refused(
    out: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    archive = Archive(tmp_path, job, "parquet")
    archive.grow()

    done = job("compact", "--source", archive.lake, "--out", f"{tmp_path}/{out}")

    assert done.exit_code == 2
    assert "name another" in done.stderr
    assert ids_in(spark, archive.lake) == archive.ids


def test_day_that_grew_after_it_was_copied_is_said(job: JobRunner, tmp_path: Path) -> None:
    archive = Archive(tmp_path, job, "parquet")
    archive.grow()
    command = ("compact", "--source", archive.lake, "--out", tmp_path / "tight")
    done = [job(*command)]
    archive.grow()
    done.append(job(*command))
    for file in (tmp_path / "tight" / "dt=2026-01-01").rglob("*.parquet"):
        file.unlink()
    done.append(job(*command))

    assert [d.exit_code for d in done] == [0, 2, 0], done
    assert f"has {2 * ROWS} rows in " in done[1].stderr
    assert "delete the folder dt=2026-01-01 there" in done[1].stderr
    table = pyarrow.dataset.dataset(tmp_path / "tight", format="parquet").to_table(["message_id"])
    assert Counter(table["message_id"].to_pylist()) == archive.ids


def ids_in(spark: SparkSession, lake: LakeSource) -> Counter[str]:
    return Counter(row[0] for row in read_lake(spark, lake).select("message_id").collect())


def files_of(spark: SparkSession, archive: LakeSource) -> set[str]:
    """Return the files that count now."""
    if archive.format == "iceberg":
        table = IcebergTable(archive.path)
        return {row[0] for row in spark.table(f"{table.sql_name}.files").select("file_path").collect()}
    return set(read_lake(spark, archive).inputFiles())
