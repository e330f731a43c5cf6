"""
The tables of one output, in one format: which there are, their columns, rows added, columns widened, merges.

    OUT/tracks, OUT/order_completed, ...       folders of Delta, Iceberg or Parquet
    table:CATALOG.SCHEMA.tracks, ...           Delta or Iceberg tables of the user's catalog
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline.runtime.folder import Folder, is_remote
from pipeline.runtime.session import IcebergTable
from pipeline.schema import DAY, LATEST_COLUMNS
from pipeline.sinks.delta import DeltaTable, vacuum
from pipeline.sinks.iceberg import OF_ICEBERG, WIDENING, expire_snapshots, layout_there, signed
from pipeline.sinks.lake import LakeSink, lake_sink
from pipeline.sinks.layout import DEFAULT_LAYOUT, StorageLayout, as_transform
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.records import LakeSource, is_table_name, quoted_table
from pipeline.transforms.table_latest import POSITIONS
from pipeline.transforms.table_names import DRIFT, LATEST_TABLES, LOADS
from pipeline.transforms.table_rows import RESCUED
from pipeline.transforms.table_types import EXACT_MAX

KEYS = ("source", "id")
OF_THE_JOB = frozenset({DRIFT, LOADS, *LATEST_TABLES.values()})
_MARKS = {"delta": "_delta_log", "iceberg": "metadata", "parquet": "_gateway"}
"""What each folder of a table has."""


@dataclass(frozen=True)
class TableStore:
    """The tables of an output. It holds no session."""

    lake: LakeSource
    layout: StorageLayout = DEFAULT_LAYOUT
    """What the user asks of new tables; each has of it what its columns allow."""
    _parquet: dict[str, ParquetFolder] = field(default_factory=dict)

    def path(self, table: str) -> str:
        """Return the path or name of a table."""
        separator = "." if is_table_name(self.lake.path) else "/"
        return f"{self.lake.path.rstrip('/')}{separator}{table}"

    def sql_name(self, table: str) -> str:
        """Return the name of a table in SQL."""
        if self.lake.format == "iceberg":
            return IcebergTable(self.path(table)).sql_name
        if is_table_name(self.lake.path):
            return quoted_table(self.path(table))
        return f"{self.lake.format}.`{self.path(table)}`"

    def sink(self, table: str, columns: T.StructType) -> LakeSink:
        """Return the sink of rows with these columns."""
        if table not in self._parquet:
            layout = self.layout.of_columns(() if table in OF_THE_JOB else columns.names)
            sink = lake_sink(LakeSource(self.lake.format, self.path(table)), columns, DAY, layout)
            if not isinstance(sink, ParquetFolder):
                return sink
            self._parquet[table] = sink  # its staging is a run's own
        return self._parquet[table]

    def names(self, spark: SparkSession) -> frozenset[str]:
        """Return the tables that there are."""
        if is_table_name(self.lake.path):
            schema = quoted_table(self.lake.path)
            if not spark.catalog.databaseExists(schema):
                return frozenset()
            rows = (
                spark.sql(f"SHOW TABLES IN {schema}").where("NOT isTemporary").select("tableName").collect()
            )
            return frozenset(row[0] for row in rows)
        folder, mark = Folder(spark, self.lake.path), _MARKS[self.lake.format]
        return frozenset(name for name in folder.names() if mark in folder.names(name))

    def holds_tables(self, spark: SparkSession) -> bool:
        """Whether the job `tables` writes here; False on Spark Connect, which shows no folders."""
        if is_table_name(self.lake.path):
            return LOADS in self.names(spark)
        return not is_remote(spark) and _MARKS[self.lake.format] in Folder(spark, self.lake.path).names(LOADS)

    def columns(self, spark: SparkSession, table: str) -> T.StructType:
        """Return the columns of a table that exists."""
        if self.lake.format == "iceberg" or is_table_name(self.lake.path):
            spark.sql(f"REFRESH TABLE {self.sql_name(table)}")
            return spark.table(self.sql_name(table)).schema
        reader = spark.read.option("mergeSchema", "true").format(self.lake.format)
        return reader.load(self.path(table)).schema

    def ledger(self, spark: SparkSession, table: str) -> Ledger | None:
        """Return the ledger of a table that exists; None if nothing was committed to it."""
        needs_columns = self.lake.format == "iceberg" or self.layout != DEFAULT_LAYOUT
        columns = self.columns(spark, table) if needs_columns else T.StructType([])
        return self.sink(table, columns).ledger(spark)

    @property
    def can_change(self) -> bool:
        """Whether rows can be replaced, and columns get another type: not in a folder of Parquet files."""
        return self.lake.format != "parquet"

    def exact(self, spark: SparkSession, table: str, columns: Sequence[str]) -> list[str]:
        """Return those of some bigint columns whose numbers a double holds exactly."""
        if not columns:
            return []
        farthest = [F.max(F.greatest(F.col(name), -F.col(name))).alias(name) for name in columns]
        # Without an overflow: the lowest bigint has no negative.
        known = spark.table(self.sql_name(table)).select(
            *(F.greatest(F.col(n), F.lit(-(2**63) + 1)).alias(n) for n in columns)
        )
        row = known.agg(*farthest).collect()[0]
        return [name for name in columns if row[name] is None or row[name] <= EXACT_MAX]

    def widen(self, spark: SparkSession, table: str, columns: Sequence[str], ledger: Ledger | None) -> None:
        """Make bigint columns double, by a rewrite in one commit that repeats the table's ledger."""
        stored = spark.table(self.sql_name(table))
        rewritten = stored.withColumns({name: F.col(name).cast("double") for name in columns})
        if self.lake.format == "delta":
            DeltaTable(self.path(table)).rewrite(rewritten, ledger)
            return
        replacing = rewritten.writeTo(self.sql_name(table)).using("iceberg")
        there = layout_there(spark, IcebergTable(self.path(table)))
        if there.partition_by:
            replacing = replacing.partitionedBy(*map(as_transform, there.partition_by))
        for name, value in there.properties:
            if name not in OF_ICEBERG:
                replacing = replacing.tableProperty(name, value)
        (replacing if ledger is None else signed(replacing, ledger, by=WIDENING)).replace()

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Return the rows of a table."""
        return spark.table(self.sql_name(table))

    def overwrite(self, rows: DataFrame, table: str) -> None:
        """Replace all rows of a table of latest traits, in one commit."""
        self._prepare(rows.sparkSession, table, rows.schema)
        rows.writeTo(self.sql_name(table)).overwrite(F.lit(True))

    def merge(self, rows: DataFrame, table: str) -> None:
        """
        Replace in a table of latest traits what these rows have that is newer.

        Doing it again changes nothing, so it needs no ledger.
        """
        spark, name = rows.sparkSession, self.sql_name(table)
        self._prepare(spark, table, rows.schema)
        view = f"gateway_{table}"
        rows.createOrReplaceTempView(view)
        traits = [column for column in rows.columns if column not in LATEST_COLUMNS]
        spark.sql(merge_statement(name, view, traits))
        spark.catalog.dropTempView(view)

    def compact_latest(self, spark: SparkSession, table: str, keep: timedelta) -> None:
        """
        Merge the small files of a table of latest traits, which has no days, and delete older versions.

        A batch that merges meanwhile may fail, or this; each may be done again.
        """
        if self.lake.format == "delta":
            spark.sql(f"OPTIMIZE {self.sql_name(table)}")
        else:
            named = IcebergTable(self.path(table))
            spark.sql(
                f"CALL `{named.catalog}`.system.rewrite_data_files(table => '{named.name}', "
                "options => map('min-input-files', '2'))"
            )
        self.expire_latest(spark, table, keep)

    def expire_latest(self, spark: SparkSession, table: str, keep: timedelta) -> None:
        """Delete the versions of a table of latest traits that are older than this, but the last one."""
        if self.lake.format == "delta":
            vacuum(spark, self.sql_name(table), keep)
        else:
            expire_snapshots(spark, IcebergTable(self.path(table)), keep, least=1)

    def _prepare(self, spark: SparkSession, table: str, columns: T.StructType) -> None:
        """Create a table of latest traits, or add the columns that it lacks."""
        name = self.sql_name(table)
        ddl = ", ".join(f"`{column.name}` {column.dataType.simpleString()}" for column in columns)
        clauses = StorageLayout(properties=self.layout.properties).clauses(())
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({ddl}) USING {self.lake.format}{clauses}")
        existing = set(self.columns(spark, table).names)
        added = [column for column in columns if column.name not in existing]
        if added:
            ddl = ", ".join(f"`{column.name}` {column.dataType.simpleString()}" for column in added)
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({ddl})")


def table_is_merged(columns: Sequence[str]) -> bool:
    """Whether a table of these columns is one of latest traits."""
    return POSITIONS in columns


def merge_statement(table: str, rows: str, traits: Sequence[str]) -> str:
    """Return the statement that merges rows of latest traits into a table: of each trait the newer one."""

    def newer(key: str) -> str:
        theirs, ours = f"try_element_at(s.{POSITIONS}, {key})", f"try_element_at(t.{POSITIONS}, {key})"
        return f"({theirs} IS NOT NULL AND ({ours} IS NULL OR {theirs} > {ours}))"

    updates = ["t.received_at = greatest(t.received_at, s.received_at)"]
    updates += [f"t.`{c}` = CASE WHEN {newer(_literal(c))} THEN s.`{c}` ELSE t.`{c}` END" for c in traits]
    updates += [
        f"t.{RESCUED} = map_concat(map_filter(t.{RESCUED}, (k, v) -> NOT {newer('k')}), "
        f"map_filter(s.{RESCUED}, (k, v) -> {newer('k')}))",
        f"t.{POSITIONS} = map_zip_with(t.{POSITIONS}, s.{POSITIONS}, (k, a, b) -> greatest(a, b))",
    ]
    columns = [*LATEST_COLUMNS, *traits]
    keys = " AND ".join(f"t.`{key}` = s.`{key}`" for key in KEYS)
    names, values = (", ".join(f"{of}`{c}`" for c in columns) for of in ("", "s."))
    return (
        f"MERGE INTO {table} t USING {rows} s ON {keys} "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(updates)} "
        f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
    )


def _literal(text: str) -> str:
    return f"'{text}'"  # of a-z, 0-9 and _ only
