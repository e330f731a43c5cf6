"""
A Delta table: the ledger is the commit's user metadata, and its number the table's own transaction.

Two jobs cannot both commit number N: Delta lets the second one fail, or leaves its rows out. So the
ledger is read again after each commit, and must be the one that was to be written.
"""

from dataclasses import dataclass
from datetime import timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.folder import refuse_foreign
from pipeline.sinks.ledger import Ledger

APPLICATION = "gateway-ledger"
HISTORY_READ = 20
"""Commits to look for the ledger in, which are cheap to read; maintenance adds three at a time."""

METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
RETENTION_CHECK_CONF = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True)
class DeltaTable:
    """A sink of rows, in folders by these columns."""

    path: str
    folders: tuple[str, ...] = ()

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """See Sink."""
        try:
            ledgers = self._ledgers(spark, HISTORY_READ) or self._ledgers(spark, None)
        except AnalysisException as err:
            if err.getCondition() not in ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE"):
                raise
            refuse_foreign(spark, self.path)
            return None
        if not ledgers:
            raise PipelineError(f"the Delta table {self.path} has no ledger of this job: name another output")
        return max(ledgers, key=lambda ledger: ledger.commit)

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """See Sink."""
        writer = rows.write.format("delta").mode("append").partitionBy(*self.folders)
        writer = writer.option("txnAppId", APPLICATION).option("txnVersion", ledger.commit)
        # A table that was begun without a column gets it.
        writer = writer.option("mergeSchema", "true")
        writer.option("userMetadata", ledger.to_json()).save(self.path)
        spark = rows.sparkSession
        # The last commit is this one, but for maintenance that came between.
        if ledger not in self._ledgers(spark, 1) and self.ledger(spark) != ledger:
            raise PipelineError(f"another job writes into {self.path}: stop one of them")

    def compact(self, spark: SparkSession, *, before: str, keep: timedelta) -> None:
        """See Table."""
        ledger = self.ledger(spark)
        if ledger is None:
            raise PipelineError(f"there is no Delta table at {self.path}")
        # History is deleted after a month, and then the ledger must still be somewhere.
        spark.conf.set(METADATA_CONF, ledger.to_json())
        spark.conf.set(RETENTION_CHECK_CONF, "false")
        try:
            spark.sql(f"OPTIMIZE {self.name} WHERE dt < '{before}'")
            spark.sql(f"VACUUM {self.name} RETAIN {keep.total_seconds() / 3600} HOURS")
        finally:
            spark.conf.unset(METADATA_CONF)
            spark.conf.unset(RETENTION_CHECK_CONF)

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return f"delta.`{self.path}`"

    def _ledgers(self, spark: SparkSession, commits: int | None) -> list[Ledger]:
        """Return those that the last commits tell of, or all that are still in the table's history."""
        limit = "" if commits is None else f" LIMIT {commits}"
        history = spark.sql(f"DESCRIBE HISTORY {self.name}{limit}").select("userMetadata").collect()
        told = (row["userMetadata"] or "" for row in history)
        return [Ledger.from_json(text) for text in told if text.startswith('{"version":')]
