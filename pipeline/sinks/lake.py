"""The sinks of an archive, partitioned by day and hour of the log time."""

from pyspark.sql import SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.session import IcebergTable
from pipeline.schema import ARCHIVE
from pipeline.sinks.delta import DeltaTable, ledgers_in
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.local import LocalRecords
from pipeline.sources.records import LakeSource

FOLDERS = ("dt", "hr")


def lake_sink(out: LakeSource) -> DeltaTable | IcebergLake | ParquetFolder:
    """Return the sink of rows in schema.ARCHIVE."""
    match out.format:
        case "delta":
            return DeltaTable(out.path, FOLDERS)
        case "iceberg":
            return IcebergLake(IcebergTable(out.path), ARCHIVE, FOLDERS)
    return ParquetFolder(out.path, FOLDERS)


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
