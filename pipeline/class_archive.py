"""
Makes the archive of classes that a local Spark starts from: the JVM maps it, and need not read and check
20,000 classes anew. `make pipeline` runs this once; without the archive everything works, and starts slower.

The classes are those of a short archive job and an audit. What code generation makes and what the
connectors' loader loads is not in it.
"""

import contextlib
import io
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.cli import main as run_job
from pipeline.runtime.session import JAVA_OPTIONS, class_archive, create_session
from pipeline.schema import RECORD
from pipeline.sinks import FOLDERS
from pipeline.transforms import archived

EXIT_TIMEOUT_S = 300.0
"""How long the JVM may take to write it; seconds, but on a machine that is busy."""


def main() -> None:
    """Run the jobs once, and keep their classes."""
    target = class_archive()
    made = target.with_suffix(".new")
    target.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        spark = create_session(
            "classes", conf={JAVA_OPTIONS: f"-Xlog:cds=off -XX:ArchiveClassesAtExit={made}"}
        )
        _run_jobs(spark, Path(folder))
        _end_jvm(spark)
    made.rename(target)


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
