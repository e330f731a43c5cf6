"""Claim: what is run for the archive of classes runs to its end, so that there is an archive."""

from pathlib import Path

from pyspark.sql import SparkSession

from pipeline import class_archive
from pipeline.sources import LakeSource, read_lake


def test_jobs_whose_classes_are_archived_run(spark: SparkSession, tmp_path: Path) -> None:
    class_archive._run_jobs(spark, tmp_path)

    assert read_lake(spark, LakeSource("parquet", str(tmp_path / "copy"))).count() == 1
