"""
Makes a Spark home from which a local Spark starts faster; `make pipeline` runs this once. It contains

- links to the programs and jars of the installed Spark;
- a class data archive of the classes that a short archive job and an audit load: the JVM maps it instead of
  loading and verifying each class; generated classes and those of the connectors are not in it;
- no `pyspark.zip`, so that Python workers import the installed, compiled modules.

The home is optional.
"""

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.cli import main as run_job
from pipeline.runtime.session import JAVA_OPTIONS, class_archive, create_session, spark_home
from pipeline.schema import RECORD
from pipeline.sinks.lake import FOLDERS
from pipeline.transforms.clean_topic import archived

EXIT_TIMEOUT_S = 300.0
"""How long the JVM may take to write the archive; some seconds on an idle machine."""


def main() -> None:
    """Make the home, run the jobs once from it, and archive their classes."""
    os.environ.pop("SPARK_HOME", None)
    _link_spark(spark_home())
    target = class_archive()
    made = target.with_suffix(".new")
    with tempfile.TemporaryDirectory() as folder:
        spark = create_session(
            "classes", conf={JAVA_OPTIONS: f"-Xlog:cds=off -XX:ArchiveClassesAtExit={made}"}
        )
        _run_jobs(spark, Path(folder))
        _end_jvm(spark)
    made.rename(target)


def _link_spark(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).with_name(part))


def _run_jobs(spark: SparkSession, folder: Path) -> None:
    record = {"topic": "events", "partition": 0, "offset": 0, "key": b"id", "value": b'{"messageId":"id"}'}
    records = spark.createDataFrame([record], RECORD)
    records.transform(archived).write.partitionBy(*FOLDERS).parquet(f"{folder}/events")
    source = ("--source", f"parquet://{folder}/events")
    for job in (
        ("archive", *source, "--out", f"{folder}/copy", "--format", "parquet", "--once"),
        ("audit", *source, "--partitions", "1"),
    ):
        output = io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            contextlib.suppress(SystemExit),  # the audit exits with 1: no gateway wrote the record
        ):
            run_job(job)


def _end_jvm(spark: SparkSession) -> None:
    """Stop Spark and wait for its JVM, which writes the archive at its end."""
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_TIMEOUT_S)


if __name__ == "__main__":
    main()
