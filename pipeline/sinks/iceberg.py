"""
An Iceberg table: the ledger is a property of the snapshot that adds the rows.

Iceberg appends whatever two jobs commit. So the ledger's line is looked at after each commit, and a
job that finds another one's ends; Delta, Postgres and plain Parquet refuse the second commit itself.
"""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.errors import PipelineError
from pipeline.runtime.folder import refuse_foreign
from pipeline.runtime.session import IcebergTable
from pipeline.sinks.ledger import Ledger
from pipeline.sources.records import is_named

PROPERTY, WRITER = "gateway-ledger", "gateway-writer"
COMPACTION = "compact"
SNAPSHOTS_KEPT = 10
"""At least, whatever their age; the ledger is looked for in so many."""

ORPHANS_KEPT = timedelta(days=1)
"""Files of no snapshot may be those of a batch that is being written; none takes so long."""


@dataclass(frozen=True)
class IcebergLake:
    """A sink of rows of a schema, in folders by these columns."""

    table: IcebergTable
    schema: StructType
    folders: tuple[str, ...] = ()
    _run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """See Sink. Creates the table if it is not there."""
        if not is_named(self.table.path):
            refuse_foreign(spark, self.table.path, frozenset({"data", "metadata"}))
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in self.schema)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.table.sql_name} ({columns}) "
            f"USING iceberg PARTITIONED BY ({', '.join(self.folders)})"
        )
        self._add_columns(spark)
        stated = self._stated(spark)
        if not stated and not spark.table(f"{self.table.sql_name}.snapshots").isEmpty():
            raise PipelineError(f"the table {self.table} has no ledger of this job: name another output")
        return stated[0].ledger if stated else None

    def _add_columns(self, spark: SparkSession) -> None:
        """Give a table that was begun without some columns those that it lacks."""
        has = set(spark.table(self.table.sql_name).columns)
        lacks = [field for field in self.schema if field.name not in has]
        for column in lacks:
            added = f"`{column.name}` {column.dataType.simpleString()}"
            spark.sql(f"ALTER TABLE {self.table.sql_name} ADD COLUMN {added}")

    def stated_ledger(self, spark: SparkSession) -> Ledger | None:
        """Return what readers find there now, and touch nothing; None if no job of ours wrote there."""
        stated = self._stated(spark)
        return stated[0].ledger if stated else None

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """See Sink."""
        self._append(rows, ledger, by=self._run)
        rivals = {s.by for s in self._stated(rows.sparkSession) if s.ledger.commit >= ledger.commit}
        if rivals - {COMPACTION} != {self._run}:
            raise PipelineError(
                f"another job writes into {self.table}: stop one of them, and go back to commit "
                f"{ledger.commit - 1} of its ledger (system.rollback_to_snapshot)"
            )

    def compact(self, spark: SparkSession, *, before: str, keep: timedelta) -> None:
        """See Table."""
        ledger = self.ledger(spark)
        if ledger is None:
            raise PipelineError(f"there is nothing in {self.table}")
        call, table = f"CALL `{self.table.catalog}`.system", f"table => '{self.table.name}'"
        spark.sql(
            f"{call}.rewrite_data_files({table}, where => 'dt < \"{before}\"', "
            "options => map('min-input-files', '2'))"
        )
        # Old snapshots go, and the ledger must still be in one.
        self._append(spark.table(self.table.sql_name).limit(0), ledger, by=COMPACTION)
        oldest = datetime.now(UTC) - keep
        older_than = f"older_than => TIMESTAMP '{oldest:%Y-%m-%d %H:%M:%S}'"
        spark.sql(f"{call}.expire_snapshots({table}, {older_than}, retain_last => {SNAPSHOTS_KEPT})")
        orphans_keep = max(keep, ORPHANS_KEPT)
        older_than = f"older_than => TIMESTAMP '{datetime.now(UTC) - orphans_keep:%Y-%m-%d %H:%M:%S}'"
        spark.sql(f"{call}.remove_orphan_files({table}, {older_than})")

    def _append(self, rows: DataFrame, ledger: Ledger, *, by: str) -> None:
        writer = rows.writeTo(self.table.sql_name).option(f"snapshot-property.{PROPERTY}", ledger.to_json())
        # Otherwise each batch would have to be sorted by day and hour first.
        writer.option(f"snapshot-property.{WRITER}", by).option("fanout-enabled", "true").append()

    def _stated(self, spark: SparkSession) -> list["_Stated"]:
        """Return the last ledgers that snapshots state, highest commit first."""
        # Catalogs remember tables for a while, and another session may have written since.
        spark.sql(f"REFRESH TABLE {self.table.sql_name}")
        snapshots = spark.table(f"{self.table.sql_name}.snapshots").where(
            F.col("summary")[PROPERTY].isNotNull()
        )
        last = snapshots.orderBy(F.desc("committed_at")).limit(SNAPSHOTS_KEPT)
        rows = last.select(F.col("summary")[PROPERTY], F.col("summary")[WRITER]).collect()
        found = (_Stated(Ledger.from_json(row[0]), row[1]) for row in rows)
        return sorted(found, key=lambda stated: stated.ledger.commit, reverse=True)


class _Stated(NamedTuple):
    """A ledger, and the run that wrote it."""

    ledger: Ledger
    by: str
