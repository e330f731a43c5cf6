"""Where jobs write: each sink stores every batch exactly once, however often the job is killed."""

from pipeline.sinks.lake import FOLDERS, create_table, lake_writer
from pipeline.sinks.parquet_counts import ParquetCounts
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sinks.publisher import Target, Verdicts, publish

__all__ = [
    "FOLDERS",
    "ParquetCounts",
    "PostgresCounts",
    "Target",
    "Verdicts",
    "create_table",
    "lake_writer",
    "publish",
]
