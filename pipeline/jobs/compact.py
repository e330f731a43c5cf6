"""Compact: merges the small files of an archive into few large ones."""

import posixpath
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime import options
from pipeline.runtime.erasures import apply_to_archive
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.sinks.lake import FOLDERS, lake_sink
from pipeline.sinks.ledger import CheckpointBatch, next_ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.refusal import refusal
from pipeline.sinks.table_store import TableStore, table_is_merged
from pipeline.sources.origin import Origin
from pipeline.sources.records import LakeSource, read_lake
from pipeline.transforms.table_names import LOADS

JOB = "compact"
KEEP_MIN = timedelta(days=1)
"""Files of a running batch are not committed yet; no batch takes longer than this."""


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
            "--keep", "how long replaced files of a table stay for its readers", shown="7d"
        ),
    ] = timedelta(days=7),
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Merge the small files of closed days. May run beside the archive job, and again at any time.

    Delta and Iceberg tables are compacted in place, also each of those of `tables`: large files stay, and
    replaced files and versions older than --keep are deleted. A Parquet archive cannot replace its files
    atomically, so it stays, and --out gets a copy with one file an hour, of the days that it lacks.
    """
    if not isinstance(source, LakeSource):
        raise UsageError(f"{source} is no archive")
    if keep < KEEP_MIN:
        raise UsageError("--keep is shorter than 1d: files of a batch that is being written would go")
    day = before or datetime.now(UTC).strftime("%Y-%m-%d")
    if source.format == "parquet":
        out = _other_folder(source.path, out)
    log_progress = progress_logger(JOB)
    log_progress("starting Spark")
    store = TableStore(source)
    # Iceberg's catalogs are by folder: that of a table, and that of the tables in a folder.
    in_folder = LakeSource(source.format, store.path(LOADS))
    spark = start_session(JOB, source, in_folder, remote=remote, conf=conf)
    log_progress(f"merging files of {source}")
    sink = lake_sink(source)
    if store.holds_tables(spark):
        _compact_tables(spark, store, day, keep)
    elif isinstance(sink, ParquetFolder):
        _copy(spark, source, ParquetFolder(str(out), FOLDERS), day)
    else:
        sink.compact(spark, before=day, keep=keep)
    print(f"{source} is compacted up to {day}")


def _compact_tables(spark: SparkSession, store: TableStore, day: str, keep: timedelta) -> None:
    """Compact each table of the job `tables`."""
    if not store.can_change:
        raise UsageError(f"the tables in {store.lake} are folders of Parquet files, which cannot be replaced")
    for table in sorted(store.names(spark)):
        columns = store.columns(spark, table)
        sink = store.sink(table, columns)
        if table_is_merged(columns.names):
            store.compact_latest(spark, table, keep)
        elif not isinstance(sink, ParquetFolder):
            sink.compact(spark, before=day, keep=keep)


def _other_folder(source: str, out: str | None) -> str:
    """Return --out, unless one of the two folders contains the other."""
    if out is None:
        raise UsageError("a Parquet archive is compacted into another folder: name it with --out")
    paths = (PurePosixPath(posixpath.realpath(path.removeprefix("file://"))) for path in (source, out))
    archive, copy = paths
    if archive.is_relative_to(copy) or copy.is_relative_to(archive):
        raise UsageError(f"--out {out} and the archive are one folder, or one in the other: name another")
    return out


def _copy(spark: SparkSession, source: LakeSource, out: ParquetFolder, day: str) -> None:
    """Add the closed days that the copy lacks, each in a commit."""
    ledger, origin = out.ledger(spark), Origin(str(source), "", 0, {})
    if refused := refusal(ledger, None, origin, job=JOB, by_batch=False):
        raise PipelineError(refused.sentence)
    original = ParquetFolder(source.path, FOLDERS).published_ledger(spark)
    # Of several logs the copy does not say which row is of which columns.
    columns_from = {} if original is None or original.earlier else original.columns_from
    copied = {} if ledger is None else _rows_a_day(spark, LakeSource("parquet", out.path), day)
    for closed, rows in sorted(_rows_a_day(spark, source, day).items()):
        if copied.get(closed, rows) != rows:
            raise PipelineError(
                f"{closed} has {rows:,} rows in {source} and {copied[closed]:,} in {out.path}: "
                f"delete the folder dt={closed} there and compact again"
            )
        if closed not in copied:
            batch = CheckpointBatch(JOB, 1 if ledger is None else ledger.commit + 1)
            ledger = next_ledger(ledger, origin, {}, job=JOB, batch=batch)
            assert ledger is not None
            ledger = replace(ledger, columns_from=columns_from)
            rows_of_day = apply_to_archive(read_lake(spark, source).where(F.col("dt") == closed))
            ordered = rows_of_day.repartition(*FOLDERS).sortWithinPartitions(*FOLDERS, "partition", "offset")
            out.store(ordered, ledger)


def _rows_a_day(spark: SparkSession, archive: LakeSource, before: str) -> dict[str, int]:
    days = read_lake(spark, archive).where(F.col("dt") < before).groupBy("dt").count().collect()
    return {row["dt"]: row["count"] for row in days}
