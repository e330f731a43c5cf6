"""Compact: an archive's many small files become few large ones."""

import posixpath
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime import options
from pipeline.runtime.session import catalog_conf, create_session
from pipeline.runtime.stages import stage_teller
from pipeline.sinks.lake import FOLDERS, lake_sink
from pipeline.sinks.ledger import Batch, refusal, successor
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.origin import Origin
from pipeline.sources.records import LakeSource, read_lake

JOB = "compact"
KEEP_MIN = timedelta(days=1)
"""Files that a batch has written and not yet committed count for nothing, too; none takes so long."""


def compact(
    source: options.SourceOption,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="folder of the compacted Parquet archive")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="DAY", help="days before this one; default today, UTC")
    ] = None,
    keep: Annotated[
        timedelta,
        options.duration_option(
            "--keep", "how long files of a table that no longer count stay for its readers", shown="7d"
        ),
    ] = timedelta(days=7),
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Merge the small files of closed days. May run beside the archive job, and again at any time.

    Delta and Iceberg tables are compacted in place; what is large already stays as it is, and files
    and versions older than --keep are deleted. A Parquet archive stays as it is, for no reader could
    see its files replaced at once: --out gets a copy with one file an hour, of the days it has not.
    """
    if not isinstance(source, LakeSource):
        raise UsageError(f"{source} is no archive")
    if keep < KEEP_MIN:
        raise UsageError("--keep is shorter than 1d: files of a batch that is being written would go")
    day = before or datetime.now(UTC).strftime("%Y-%m-%d")
    if source.format == "parquet":
        out = _other_folder(source.path, out)
    tell = stage_teller(JOB)
    tell("starting Spark")
    spark = create_session(
        JOB, remote=remote, conf=catalog_conf(source) | dict(conf or []), formats=source.formats
    )
    tell(f"merging files of {source}")
    sink = lake_sink(source)
    if isinstance(sink, ParquetFolder):
        _copy(spark, source, ParquetFolder(str(out), FOLDERS), day)
    else:
        sink.compact(spark, before=day, keep=keep)
    print(f"{source} is compacted up to {day}")


def _other_folder(source: str, out: str | None) -> str:
    """Return --out if it is another folder than the source, and neither lies in the other."""
    if out is None:
        raise UsageError("a Parquet archive is compacted into another folder: name it with --out")
    there, here = (PurePosixPath(posixpath.realpath(path.removeprefix("file://"))) for path in (source, out))
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UsageError(f"--out {out} and the archive are one folder, or one in the other: name another")
    return out


def _copy(spark: SparkSession, source: LakeSource, out: ParquetFolder, day: str) -> None:
    """Add the closed days that are not there yet, each in a commit."""
    ledger, origin = out.ledger(spark), Origin(str(source), "", 0, {})
    if found := refusal(ledger, None, origin, job=JOB, by_batch=False):
        raise PipelineError(found.sentence)
    held = _rows_a_day(spark, source, day)
    copied = {} if ledger is None else _rows_a_day(spark, LakeSource("parquet", out.path), day)
    for closed, rows in sorted(held.items()):
        if copied.get(closed, rows) != rows:
            raise PipelineError(
                f"{closed} has {rows:,} rows in {source} and {copied[closed]:,} in {out.path}: "
                f"delete the folder dt={closed} there and compact again"
            )
        if closed not in copied:
            batch = Batch(JOB, 1 if ledger is None else ledger.commit + 1)
            ledger = successor(ledger, origin, {}, job=JOB, batch=batch)
            assert ledger is not None
            loose = read_lake(spark, source).where(F.col("dt") == closed)
            ordered = loose.repartition(*FOLDERS).sortWithinPartitions(*FOLDERS, "partition", "offset")
            out.store(ordered, ledger)


def _rows_a_day(spark: SparkSession, archive: LakeSource, before: str) -> dict[str, int]:
    days = read_lake(spark, archive).where(F.col("dt") < before).groupBy("dt").count().collect()
    return {row["dt"]: row["count"] for row in days}
