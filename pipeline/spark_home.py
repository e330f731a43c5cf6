"""
Lays out a home for a local Spark to start quickly from, and `make pipeline` runs this once. In it are

- Spark's own programs and jars, as they are installed;
- an archive of the 20,000 classes that a short archive job and an audit load, which the JVM maps and need not
  read and check anew; what code generation makes and the connectors' loader loads is not in it;
- no `pyspark.zip`, from which each Python worker would compile Spark's modules anew: it finds the installed.

Without this home everything works, and starts slower.
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
"""How long the JVM may take to write it; seconds, but on a machine that is busy."""


def main() -> None:
    """Lay out the home, run the jobs once from it, and keep their classes."""
    os.environ.pop("SPARK_HOME", None)
    _lay_out(spark_home())
    target = class_archive()
    made = target.with_suffix(".new")
    with tempfile.TemporaryDirectory() as folder:
        spark = create_session(
            "classes", conf={JAVA_OPTIONS: f"-Xlog:cds=off -XX:ArchiveClassesAtExit={made}"}
        )
        _run_jobs(spark, Path(folder))
        _end_jvm(spark)
    made.rename(target)


def _lay_out(home: Path) -> None:
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
        said = io.StringIO()
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            contextlib.suppress(SystemExit),  # it is no gateway's record, and the audit says so
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
