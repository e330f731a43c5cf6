"""Claim: compaction makes few files of many, and an audit finds the same records in them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.runtime.session import IcebergTable
from pipeline.sources.records import LakeSource, read_lake
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.records import RecordMaker, fill_topic

KEPT = {"retention.ms": "-1"}


@pytest.mark.parametrize("lake_format", ["parquet", "delta", "iceberg"])
async def test_small_files_are_merged(
    lake_format: str,
    job: JobRunner,
    spark: SparkSession,
    kafka_bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    name = await topic("small", partitions=2, configs=KEPT)
    maker = RecordMaker(2)
    lanes = maker.lanes(maker.event(f"id-{n}") for n in range(300))
    await fill_topic(kafka_bootstrap, name, lanes, batch_records=50)
    loose = tmp_path / "loose"
    source = f"kafka://{kafka_bootstrap}/{name}"
    archive = ("archive", "--source", source, "--out", loose, "--format", lake_format)
    assert job(*archive, "--once", "--batch-offsets", 60).exit_code == 0
    files_before = files_of(spark, LakeSource(lake_format, str(loose)))

    tight = tmp_path / "tight" if lake_format == "parquet" else loose
    where = ("--out", tight) if lake_format == "parquet" else ()
    done = [job("compact", "--source", f"{lake_format}://{loose}", *where) for _ in range(2)]

    assert [d.exit_code for d in done] == [0, 0], done
    assert files_before >= 5
    assert files_of(spark, LakeSource(lake_format, str(tight))) == 1
    audited = job("audit", "--source", f"{lake_format}://{tight}")
    assert audited.exit_code == 0, audited
    assert "300 records in 2 partitions" in audited.stdout


def files_of(spark: SparkSession, archive: LakeSource) -> int:
    if archive.format == "iceberg":
        table = IcebergTable(archive.path)
        return spark.table(f"{table.catalog}.{table.name}.files").count()
    return len(read_lake(spark, archive).inputFiles())
