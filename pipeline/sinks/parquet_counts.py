"""
Counts as Parquet, exactly once: each batch has a folder of its own, which a repeated batch replaces.

Counts of one minute may lie in several batches: readers sum them up.
"""

from pyspark.sql import DataFrame

from pipeline.transforms import per_minute


class ParquetCounts:
    """Stores the counts of each batch of records; what `foreachBatch` calls."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        """Store one batch."""
        # Few rows: one file.
        counts = records.transform(per_minute).coalesce(1)
        counts.write.mode("overwrite").parquet(f"{self._path}/batch={batch_id}")
