"""Where jobs write: each sink stores every batch exactly once, however often the job is killed."""

from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.lake import FOLDERS, lake_sink, stated_ledger
from pipeline.sinks.ledger import Batch, Ledger, refusal, successor
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sinks.publisher import Target, Verdicts, publish
from pipeline.sinks.stored import Sink, Storing, run_stored

__all__ = [
    "FOLDERS",
    "Batch",
    "DeltaTable",
    "IcebergLake",
    "Ledger",
    "ParquetFolder",
    "PostgresCounts",
    "Sink",
    "Storing",
    "Target",
    "Verdicts",
    "lake_sink",
    "publish",
    "refusal",
    "run_stored",
    "stated_ledger",
    "successor",
]
