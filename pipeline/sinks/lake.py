"""The sinks of a lake; an archive is partitioned by day and hour of the log time."""

from enum import StrEnum

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime.session import IcebergTable
from pipeline.schema import ARCHIVE
from pipeline.sinks.delta import DeltaTable, ledgers_in
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.layout import DEFAULT_LAYOUT, StorageLayout
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.local import LocalRecords
from pipeline.sources.records import LakeSource, absolute, is_table_name

FOLDERS = ("dt", "hr")


class LakeFormat(StrEnum):
    """The formats of an output."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


LakeSink = DeltaTable | IcebergLake | ParquetFolder


def output_of(
    out: str, lake_format: LakeFormat, checkpoint: str | None, *, is_named: str = "a table's name"
) -> LakeSource:
    """
    Return the output that `--out` and `--format` name; `is_named` says what a catalog has under a name.

    Raises:
        UsageError: a catalog has no folders of Parquet files, and no place for a checkpoint beside a table.
    """
    lake = LakeSource(lake_format.value, absolute(out))
    if is_table_name(lake.path) and (lake_format is LakeFormat.PARQUET or checkpoint is None):
        raise UsageError(f"{out} is {is_named}: it needs --format delta or iceberg and a --checkpoint")
    return lake


def lake_sink(
    out: LakeSource,
    columns: T.StructType = ARCHIVE,
    folders: tuple[str, ...] = FOLDERS,
    layout: StorageLayout = DEFAULT_LAYOUT,
) -> LakeSink:
    """Return the sink of rows with these columns; those of an archive by default. Parquet has no layout."""
    match out.format:
        case "delta":
            return DeltaTable(out.path, folders, layout)
        case "iceberg":
            return IcebergLake(IcebergTable(out.path), columns, folders, layout)
    return ParquetFolder(out.path, folders)


def published_ledger(spark: SparkSession, lake: LakeSource) -> Ledger | None:
    """Return the ledger of what readers of an archive see; None if none is readable here."""
    sink = lake_sink(lake)
    try:
        return sink.ledger(spark) if isinstance(sink, DeltaTable) else sink.published_ledger(spark)
    except PipelineError:
        return None


def local_ledger(records: LocalRecords) -> Ledger | None:
    """Return `published_ledger` of an archive on this machine, without Spark; None of a log."""
    match records.source:
        case LakeSource(format="parquet"):
            try:
                return ParquetFolder(records.source.path, FOLDERS).local_ledger()
            except PipelineError:
                return None
        case LakeSource():
            return max(ledgers_in(records.messages), key=lambda ledger: ledger.commit, default=None)
    return None
