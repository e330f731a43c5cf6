"""Claim: what is run for the archive of classes runs to its end, and Python workers compile nothing."""

from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pipeline import spark_home
from pipeline.sources.records import LakeSource, read_lake


@pytest.mark.regression("The archive of Spark's classes was silently unusable.")
def test_jobs_whose_classes_are_archived_run(spark: SparkSession, tmp_path: Path) -> None:
    spark_home._run_jobs(spark, tmp_path)

    assert read_lake(spark, LakeSource("parquet", str(tmp_path / "copy"))).count() == 1


def test_python_workers_find_the_installed_modules_of_spark(spark: SparkSession) -> None:
    """Those of a zip are compiled anew by each worker: 0.6 CPU-seconds."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect()

    assert found == [pyspark.__file__]
