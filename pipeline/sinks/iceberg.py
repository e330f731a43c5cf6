"""
An Iceberg table: the ledger is a property of the snapshot that adds the rows.

Iceberg appends the commits of two jobs alike. So the job reads the ledgers again after each commit, and
fails if another job wrote one; Delta, Postgres and Parquet folders refuse the second commit itself.
"""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameWriterV2
from pyspark.sql.types import StructType, VariantType

from pipeline.errors import PipelineError
from pipeline.runtime.folder import require_empty
from pipeline.runtime.session import IcebergTable
from pipeline.sinks.catalog import require_catalog
from pipeline.sinks.days import Days
from pipeline.sinks.layout import DEFAULT_LAYOUT, StorageLayout, stored_properties
from pipeline.sinks.ledger import Ledger
from pipeline.sources.records import is_table_name

PROPERTY, WRITER = "gateway-ledger", "gateway-writer"
COMPACTION, WIDENING, BACKFILL, ERASURE = "compact", "widen", "backfill", "erase"
MAINTENANCE = frozenset({COMPACTION, WIDENING, BACKFILL, ERASURE})
"""Runs that repeat a ledger, since they add no offsets."""

SNAPSHOTS_KEPT = 10
"""At least, whatever their age; the ledger is in one of them."""

ORPHANS_KEPT = timedelta(days=1)
"""Files of no snapshot may belong to a running batch, which takes less than this."""


@dataclass(frozen=True)
class IcebergLake:
    """A sink of rows of a schema, partitioned by these columns."""

    table: IcebergTable
    schema: StructType
    folders: tuple[str, ...] = ()
    layout: StorageLayout = DEFAULT_LAYOUT
    """What the user asks of it, if it is new."""
    _run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """Return the ledger; creates the table if it does not exist."""
        if is_table_name(self.table.path):
            require_catalog(spark, self.table.catalog)
        else:
            require_empty(spark, self.table.path, frozenset({"data", "metadata"}))
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in self.schema)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.table.sql_name} ({columns}) "
            f"USING iceberg{self.layout.clauses(self.folders, self._version)}"
        )
        if self.layout != DEFAULT_LAYOUT:
            self.layout.check(self.table.path, layout_there(spark, self.table))
        existing = set(spark.table(self.table.sql_name).columns)  # an older table may lack some
        for column in self.schema:
            if column.name not in existing:
                added = f"`{column.name}` {column.dataType.simpleString()}"
                spark.sql(f"ALTER TABLE {self.table.sql_name} ADD COLUMN {added}")
        ledger = self.published_ledger(spark)
        if ledger is None and not spark.table(f"{self.table.sql_name}.snapshots").isEmpty():
            raise PipelineError(f"the table {self.table} has no ledger of this job: name another output")
        return ledger

    @property
    def _version(self) -> dict[str, str]:
        """The format's version, where it must not be the default: version 2 has no variants."""
        has_variants = any(isinstance(field.dataType, VariantType) for field in self.schema)
        return {"format-version": "3"} if has_variants else {}

    def published_ledger(self, spark: SparkSession) -> Ledger | None:
        """Return the ledger of what readers see, without a change; None if no job has written there."""
        ledgers = self._snapshot_ledgers(spark)
        return ledgers[0].ledger if ledgers else None

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        self._append(rows, ledger, by=self._run)
        rivals = {s.by for s in self._snapshot_ledgers(rows.sparkSession) if s.ledger.commit >= ledger.commit}
        if rivals - MAINTENANCE != {self._run}:
            raise PipelineError(
                f"another job writes into {self.table}: stop one of them, and go back to commit "
                f"{ledger.commit - 1} of its ledger (system.rollback_to_snapshot)"
            )

    def replace(self, rows: DataFrame, ledger: Ledger, days: Days) -> None:
        """Put rows in the place of those days, in one snapshot, and repeat the ledger."""
        spark = rows.sparkSession
        if "dt" in layout_there(spark, self.table).partition_by:
            signed(rows.writeTo(self.table.sql_name), ledger, by=BACKFILL).overwrite(days.where)
            return
        # A file may have rows of other days, too, which only a statement keeps.
        rows.createOrReplaceTempView(_REPLACING)
        names, values = (", ".join(f"{of}`{name}`" for name in rows.columns) for of in ("", "s."))
        spark.sql(
            f"MERGE INTO {self.table.sql_name} t USING {_REPLACING} s ON false "
            f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values}) "
            f"WHEN NOT MATCHED BY SOURCE AND t.dt >= '{days.first}' AND t.dt < '{days.end}' THEN DELETE"
        )
        spark.catalog.dropTempView(_REPLACING)
        self._append(spark.table(self.table.sql_name).limit(0), ledger, by=BACKFILL)

    def compact(self, spark: SparkSession, *, before: str, keep: timedelta) -> None:
        """Merge the small files of the days before one, as DeltaTable.compact does; delete orphaned files."""
        ledger = self.ledger(spark)
        if ledger is None:
            raise PipelineError(f"there is nothing in {self.table}")
        call, table = f"CALL `{self.table.catalog}`.system", f"table => '{self.table.name}'"
        spark.sql(
            f"{call}.rewrite_data_files({table}, where => 'dt < \"{before}\"', "
            "options => map('min-input-files', '2'))"
        )
        # Old snapshots expire, so a new one repeats the ledger.
        self._repeat(spark, COMPACTION)
        expire_snapshots(spark, self.table, keep, least=SNAPSHOTS_KEPT)
        orphans_keep = max(keep, ORPHANS_KEPT)
        older_than = f"older_than => TIMESTAMP '{datetime.now(UTC) - orphans_keep:%Y-%m-%d %H:%M:%S}'"
        spark.sql(f"{call}.remove_orphan_files({table}, {older_than})")

    def change(self, spark: SparkSession, statement: str) -> None:
        """Run a statement that changes rows; a snapshot after it repeats the ledger."""
        spark.sql(statement)
        self._repeat(spark, ERASURE)

    def expire(self, spark: SparkSession, keep: timedelta) -> None:
        """Delete snapshots older than this but the last one, and their files."""
        self._repeat(spark, ERASURE)
        expire_snapshots(spark, self.table, keep, least=1)

    def _repeat(self, spark: SparkSession, by: str) -> None:
        if (ledger := self.published_ledger(spark)) is not None:
            self._append(spark.table(self.table.sql_name).limit(0), ledger, by=by)

    def _append(self, rows: DataFrame, ledger: Ledger, *, by: str) -> None:
        signed(rows.writeTo(self.table.sql_name), ledger, by=by).append()

    def _snapshot_ledgers(self, spark: SparkSession) -> list["_SnapshotLedger"]:
        """Return the ledgers of the last snapshots, highest commit first."""
        # Catalogs cache tables, and another session may have written since.
        spark.sql(f"REFRESH TABLE {self.table.sql_name}")
        snapshots = spark.table(f"{self.table.sql_name}.snapshots").where(
            F.col("summary")[PROPERTY].isNotNull()
        )
        last = snapshots.orderBy(F.desc("committed_at")).limit(SNAPSHOTS_KEPT)
        rows = last.select(F.col("summary")[PROPERTY], F.col("summary")[WRITER]).collect()
        ledgers = (_SnapshotLedger(Ledger.from_json(row[0]), row[1]) for row in rows)
        return sorted(ledgers, key=lambda written: written.ledger.commit, reverse=True)


OF_ICEBERG = frozenset(
    {"current-snapshot-id", "format", "identifier-fields", "location", "provider", "sort-order"}
)
"""What it lists as properties, and no table can be given."""

_REPLACING = "gateway_replacing"


def layout_there(spark: SparkSession, table: IcebergTable) -> StorageLayout:
    """Return how a table is laid out that exists."""
    rows = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE TABLE {table.sql_name}").collect()]
    heads = [place for place, (name, _) in enumerate(rows) if name.startswith("# Partition")]
    below = rows[heads[0] + 1 :] if heads else []
    # Of columns alone Spark lists name and type, of others part and transform.
    parts = [text if name.startswith("Part ") else name for name, text in below if not name.startswith("#")]
    return StorageLayout(tuple(parts), (), stored_properties(spark, table.sql_name))


def expire_snapshots(spark: SparkSession, table: IcebergTable, keep: timedelta, *, least: int) -> None:
    """Delete snapshots older than `keep`, but at least some newest ones, and the files of no other."""
    oldest = datetime.now(UTC) - keep
    spark.sql(
        f"CALL `{table.catalog}`.system.expire_snapshots(table => '{table.name}', "
        f"older_than => TIMESTAMP '{oldest:%Y-%m-%d %H:%M:%S.%f}', retain_last => {least})"
    )


def signed(writer: DataFrameWriterV2, ledger: Ledger, *, by: str) -> DataFrameWriterV2:
    """Return a writer whose snapshot has a ledger, and the run that wrote it."""
    writer = writer.option(f"snapshot-property.{PROPERTY}", ledger.to_json())
    # Without fanout, each batch would need a sort by day and hour.
    return writer.option(f"snapshot-property.{WRITER}", by).option("fanout-enabled", "true")


class _SnapshotLedger(NamedTuple):
    """A ledger, and the run that wrote it."""

    ledger: Ledger
    by: str
