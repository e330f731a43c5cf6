"""
A Delta table: the ledger is the commit's user metadata, and its number the table's own transaction.

Two jobs cannot both commit number N: Delta lets the second one fail, or leaves its rows out. So the
ledger is read again after each commit, and must be the one that was to be written.
"""

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime import refuse_foreign
from pipeline.sinks.ledger import Ledger

APPLICATION = "gateway-ledger"
METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class DeltaTable:
    """A sink of rows, in folders by these columns."""

    path: str
    folders: tuple[str, ...] = ()

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """See Sink."""
        try:
            commits = spark.sql(f"DESCRIBE HISTORY {self.name}").select("version", "userMetadata")
            told = commits.where("userMetadata LIKE '{\"version\":%'").orderBy("version", ascending=False)
            found = told.head(1)
            is_empty = not found and commits.isEmpty()
        except AnalysisException as err:
            if err.getCondition() in ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE"):
                refuse_foreign(spark, self.path)
                return None
            raise
        if not found and not is_empty:
            raise PipelineError(
                f"{self.path} is a Delta table without this job's ledger: name another output"
            )
        return Ledger.from_json(found[0]["userMetadata"]) if found else None

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """See Sink."""
        writer = rows.write.format("delta").mode("append").partitionBy(*self.folders)
        writer = writer.option("txnAppId", APPLICATION).option("txnVersion", ledger.commit)
        writer.option("userMetadata", ledger.to_json()).save(self.path)
        if self.ledger(rows.sparkSession) != ledger:
            raise PipelineError(f"another job writes into {self.path}: stop one of them")

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return f"delta.`{self.path}`"
