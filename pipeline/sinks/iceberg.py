"""
An Iceberg table: the ledger is a property of the snapshot that adds the rows.

Iceberg appends whatever two jobs commit. So the ledger's line is looked at after each commit, and a
job that finds another one's ends; Delta, Postgres and plain Parquet refuse the second commit itself.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.errors import PipelineError
from pipeline.runtime import IcebergTable, refuse_foreign
from pipeline.sinks.ledger import Ledger

PROPERTY = "gateway-ledger"


@dataclass(frozen=True)
class IcebergLake:
    """A sink of rows of a schema, in folders by these columns."""

    table: IcebergTable
    schema: StructType
    folders: tuple[str, ...] = ()

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """See Sink. Creates the table if it is not there."""
        refuse_foreign(spark, self.table.path, frozenset({"data", "metadata"}))
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in self.schema)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.table.sql_name} ({columns}) "
            f"USING iceberg PARTITIONED BY ({', '.join(self.folders)})"
        )
        ledgers = self._ledgers(spark)
        if not ledgers and not spark.table(f"{self.table.sql_name}.snapshots").isEmpty():
            raise PipelineError(f"{self.table} is a table without this job's ledger: name another output")
        return ledgers[-1] if ledgers else None

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """See Sink."""
        writer = rows.writeTo(self.table.sql_name).option(f"snapshot-property.{PROPERTY}", ledger.to_json())
        # Otherwise each batch would have to be sorted by day and hour first.
        writer.option("fanout-enabled", "true").append()
        last = [found.commit for found in self._ledgers(rows.sparkSession)[-2:]]
        if last not in ([ledger.commit - 1, ledger.commit], [ledger.commit]):
            raise PipelineError(
                f"another job writes into {self.table}: stop one of them, and go back to its commit "
                f"{ledger.commit - 1} (system.rollback_to_snapshot)"
            )

    def _ledgers(self, spark: SparkSession) -> list[Ledger]:
        """Return those of the table's snapshots that are still there, in order."""
        snapshots = spark.table(f"{self.table.sql_name}.snapshots")
        told = snapshots.select("committed_at", F.col("summary")[PROPERTY].alias("ledger"))
        rows = told.where("ledger IS NOT NULL").orderBy(F.desc("committed_at")).limit(2).collect()
        return [Ledger.from_json(row["ledger"]) for row in reversed(rows)]
