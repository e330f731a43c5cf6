"""
Stores batches of events as tables: one for each type and event name, latest traits, drift, and `loads` last.

    records -> entries        each event's tables, parsed once, and what the tasks saw
            -> layouts        columns of each table, added and widened before its rows
            -> rows           one commit a table, with the table's own ledger
            -> loads          one row, and the job's ledger: the batch is done

pipeline/sinks/table_ledger.py holds the rules of exactly once; pipeline/transforms/table_*.py those of names,
types and rows.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.errors import PipelineError
from pipeline.schema import (
    DRIFT_COLUMNS,
    LATEST_COLUMNS,
    LOAD_COLUMNS,
    LOG_EPOCH,
    TABLE_COLUMNS,
    struct_of,
)
from pipeline.sinks.days import Days
from pipeline.sinks.ledger import Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.table_ledger import held_ahead, is_ahead, is_of, table_ledger
from pipeline.sinks.table_store import OF_THE_JOB, TableStore
from pipeline.sinks.table_tasks import ENTRY, entries_of, latest_of, rows_of
from pipeline.sources.origin import Origin
from pipeline.sources.records import Selection, within
from pipeline.transforms.clean_topic import bounded_time
from pipeline.transforms.table_layout import (
    NO_TABLE,
    Drift,
    Layout,
    NextLayout,
    SeenTable,
    SeenTables,
    next_layout,
)
from pipeline.transforms.table_names import (
    ACCOUNTS,
    CONTEXT,
    DRIFT,
    FIXED_COLUMNS,
    LATEST_TABLES,
    LOADS,
    STANDARD_TABLES,
    TYPE_TABLES,
)
from pipeline.transforms.table_rows import (
    PROPERTIES,
    RESCUED,
    TRAITS,
    WHOLE,
    Record,
    columns_of_table,
)
from pipeline.transforms.table_types import Type

EVERY_EVENT = frozenset({*TYPE_TABLES.values(), *WHOLE})
"""The tables of which each event has a row in exactly one."""

ROWS_OF_A_FILE = 200_000
"""Up to so many rows of a table are written by one task, into one file a day."""


@dataclass(frozen=True)
class TableLimits:
    """How many tables of event names there may be, and columns of properties, traits and context in each."""

    tables_max: int
    columns_max: int


@dataclass(frozen=True)
class TablesSink:
    """The sink of the job `tables`. With variants, all properties or traits are in one more column."""

    tables: TableStore
    limits: TableLimits
    has_variants: bool = False
    _ledgers: dict[str, Ledger | None] = field(default_factory=dict)
    _layouts: dict[str, Layout] = field(default_factory=dict)
    _older: set[str] = field(default_factory=set)
    """Tables that began without the column log_epoch."""

    def ledger(self, spark: SparkSession) -> Ledger | None:
        return self.tables.sink(LOADS, struct_of(LOAD_COLUMNS)).ledger(spark)

    def check_whole(self, spark: SparkSession, origin: Origin) -> None:
        """
        Check that no batch was cut off, before the job leaves its log for another one.

        Raises:
            PipelineError: some tables have a part of a batch that others lack.
        """
        ledger = self.ledger(spark)
        if ledger is None or ledger.origin == origin.id:
            return
        tables = sorted(self.tables.names(spark) - {LOADS, *LATEST_TABLES.values()})
        held = ((table, self._held(spark, table)) for table in tables)
        if ahead := [table for table, before in held if before is not None and is_ahead(before, ledger)]:
            raise PipelineError(
                f"a run was cut off: {', '.join(ahead)} have a part of a batch that other tables lack: run "
                "the job once more on the topic before, or, if that is gone, go on without the rest by "
                "--accept-loss"
            )

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        spark = rows.sparkSession
        existing = self.tables.names(spark)
        entries = self._entries(rows, existing).persist()
        try:
            seen = self._seen(entries, existing)
            drift = [
                found
                for table in sorted(seen.tables)
                for found in self._add(
                    entries, table, seen.tables[table], ledger, is_new=table not in existing
                )
            ]
            for calls, table in LATEST_TABLES.items():
                if calls in seen.tables and self.tables.can_change:
                    self._merge(entries, calls, table, seen.tables[calls], is_new=table not in existing)
            if seen.left_out:
                left_out = entries.where(~F.get("tables", 1).isin(list(seen.tables))).count()
                drift.append(Drift("tracks", None, None, NO_TABLE, left_out, None, None))
        finally:
            entries.unpersist()
        self._add_drift(spark, drift, ledger, is_new=DRIFT not in existing)
        self._add_load(spark, seen, drift, ledger)

    def replace(self, rows: DataFrame, ledger: Ledger, days: Days) -> None:
        """
        Put rows in the place of those days in each table, and compute the latest traits anew.

        Killed in between, do it again.
        """
        spark = rows.sparkSession
        existing = self.tables.names(spark)
        entries = self._entries(rows, existing).persist()
        try:
            seen = self._seen(entries, existing)
            for table in sorted({*existing, *seen.tables} - OF_THE_JOB):
                self._replace(
                    entries, table, seen.tables.get(table), ledger, days, is_new=table not in existing
                )
        finally:
            entries.unpersist()
        for calls, table in LATEST_TABLES.items():
            if calls in existing or calls in seen.tables:
                self.compute_anew(spark, calls, is_new=table not in existing)

    def _replace(
        self,
        entries: DataFrame,
        table: str,
        seen: SeenTable | None,
        ledger: Ledger,
        days: Days,
        *,
        is_new: bool,
    ) -> None:
        spark = entries.sparkSession
        before = None if is_new else self._held(spark, table)
        if before is not None and not is_of(before, ledger):
            raise PipelineError(f"{self.tables.path(table)} is not of this job: move it out of the folder")
        if before is not None and is_ahead(before, ledger):
            raise PipelineError(
                f"the table {table} is ahead of the others, since a run was cut off: run the job once before"
            )
        layout = {} if is_new else self._layout(spark, table)
        following = layout if seen is None else self._following(spark, table, layout, seen, before).layout
        columns = self._columns(table, following)
        sink = self.tables.sink(table, columns)
        if following.keys() != layout.keys() or is_new or table in self._older:
            sink.ledger(spark)
        rows = self._projected(entries, table, following, columns)
        if before is None or isinstance(sink, ParquetFolder):
            sink.store(rows, replace(ledger, commit=1))
        else:
            sink.replace(rows, before, days)
        self._layouts[table] = following

    def compute_anew(self, spark: SparkSession, calls: str, *, is_new: bool = False) -> None:
        """Replace all latest traits by those of all stored calls, of a table in LATEST_TABLES."""
        table = LATEST_TABLES[calls]
        traits = {n: t for n, t in self._layout(spark, calls).items() if not n.startswith(f"{CONTEXT}_")}
        layout = traits if is_new else {**traits, **self._layout(spark, table)}
        columns = struct_of({**LATEST_COLUMNS, **layout})
        owner = "group_id" if table == ACCOUNTS else "user_id"
        stored = self.tables.read(spark, calls)
        if isinstance(stored.schema[TRAITS].dataType, T.VariantType):
            stored = stored.withColumn(TRAITS, F.to_json(TRAITS))
        call = stored.select(
            F.col("log_partition").alias("partition"),
            F.col("log_offset").alias("offset"),
            F.col("received_at").alias("timestamp"),
            "source",
            F.lit(None).cast("binary").alias("key"),
            F.encode(_call(calls, owner), "UTF-8").alias("value"),
            F.lit(None).cast("binary").alias("gw"),
            F.lit(0).alias(LOG_EPOCH),
        )
        together = call.where(F.col(owner).isNotNull()).repartition("source", F.col(owner))
        latest = partial(latest_of, table, layout, to_arrow_schema(columns))
        self.tables.overwrite(together.mapInArrow(latest, columns), table)
        self._layouts[table] = layout

    def _entries(self, rows: DataFrame, existing: frozenset[str]) -> DataFrame:
        empty = SeenTables(existing - STANDARD_TABLES, self.limits.tables_max, self.limits.columns_max)
        bounded = rows.withColumn("timestamp", bounded_time(F.col("timestamp")))
        return bounded.select(*Record._fields).mapInArrow(partial(entries_of, empty), ENTRY)

    def _seen(self, entries: DataFrame, existing: frozenset[str]) -> SeenTables:
        seen = SeenTables(existing - STANDARD_TABLES, self.limits.tables_max, self.limits.columns_max)
        for row in entries.where("seen IS NOT NULL").select("seen").collect():
            seen.add_json(row[0])
        seen.admit()
        return seen

    def _projected(
        self, entries: DataFrame, table: str, layout: Layout, columns: T.StructType, *, is_small: bool = False
    ) -> DataFrame:
        """Return the rows of a table, of entries that may be of others, too."""
        read, text = entries.where(F.array_contains("tables", table)), _as_text(columns)
        project = partial(rows_of, table, layout, to_arrow_schema(text))
        return _with_variants((read.coalesce(1) if is_small else read).mapInArrow(project, text), columns)

    def _add(
        self, entries: DataFrame, table: str, seen: SeenTable, batch: Ledger, *, is_new: bool
    ) -> tuple[Drift, ...]:
        """Add the rows of a table that it lacks, and return what did not fit."""
        spark = entries.sparkSession
        before = None if is_new else self._held(spark, table)
        layout = {} if is_new else self._layout(spark, table)
        ledger = table_ledger(before, batch, table=table)
        if ledger is None:
            return next_layout(table, layout, seen, columns_max=0, may_widen=()).drift
        following = self._following(spark, table, layout, seen, before)
        columns = self._columns(table, following.layout)
        lacking = within(entries, Selection(from_offsets=held_ahead(before, batch)))
        is_small = seen.rows <= ROWS_OF_A_FILE
        rows = self._projected(lacking, table, following.layout, columns, is_small=is_small)
        sink = self.tables.sink(table, columns)
        if following.layout.keys() != layout.keys() or is_new or table in self._older:
            sink.ledger(spark)  # creates the table, or adds columns to it, where the format needs that
        sink.store(rows, ledger)
        self._ledgers[table], self._layouts[table] = ledger, following.layout
        return following.drift

    def _merge(self, entries: DataFrame, calls: str, table: str, seen: SeenTable, *, is_new: bool) -> None:
        """Bring the latest traits up to these calls."""
        spark = entries.sparkSession
        traits = {name: column for name, column in seen.columns.items() if not name.startswith(f"{CONTEXT}_")}
        layout = {} if is_new else self._layout(spark, table)
        following = self._following(spark, table, layout, replace(seen, columns=traits), None)
        columns = struct_of({**LATEST_COLUMNS, **following.layout})
        calls_of = entries.where(F.array_contains("tables", calls) & F.col("owner").isNotNull())
        # The calls of one user meet in one task, and become one row.
        together = (
            calls_of.repartition("source", "owner") if seen.rows > ROWS_OF_A_FILE else calls_of.coalesce(1)
        )
        latest = partial(latest_of, table, following.layout, to_arrow_schema(columns))
        self.tables.merge(together.mapInArrow(latest, columns), table)
        self._layouts[table] = following.layout

    def _following(
        self, spark: SparkSession, table: str, layout: Layout, seen: SeenTable, before: Ledger | None
    ) -> NextLayout:
        """Return the columns for a batch, after columns of the stored table were widened."""
        plan = partial(next_layout, table, layout, seen, columns_max=self.limits.columns_max)
        following = plan(may_widen=None if self.tables.can_change else ())
        if following.widened:
            following = plan(may_widen=self.tables.exact(spark, table, following.widened))
        if following.widened:
            self.tables.widen(spark, table, following.widened, before)
        return following

    def _add_drift(self, spark: SparkSession, drift: Sequence[Drift], batch: Ledger, *, is_new: bool) -> None:
        if not drift:
            return
        for found in drift:
            print(f"tables: {found.sentence}", file=sys.stderr)
        ledger = table_ledger(None if is_new else self._held(spark, DRIFT), batch, table=DRIFT)
        if ledger is None:
            return
        columns = struct_of(DRIFT_COLUMNS)
        rows = [(*found, batch.commit, f"{datetime.now(UTC):%Y-%m-%d}") for found in drift]
        sink = self.tables.sink(DRIFT, columns)
        if is_new:
            sink.ledger(spark)
        sink.store(spark.createDataFrame(rows, columns).coalesce(1), ledger)
        self._ledgers[DRIFT] = ledger

    def _add_load(
        self, spark: SparkSession, seen: SeenTables, drift: Sequence[Drift], ledger: Ledger
    ) -> None:
        """Tell that the batch is in all tables."""
        now, columns = datetime.now(UTC), struct_of(LOAD_COLUMNS)
        events = sum(of.rows for table, of in seen.tables.items() if table in EVERY_EVENT)
        rescued = sum(found.row_count for found in drift if found.found != NO_TABLE)
        row = (ledger.commit, now, events, len(seen.tables), rescued, f"{now:%Y-%m-%d}")
        self.tables.sink(LOADS, columns).store(spark.createDataFrame([row], columns).coalesce(1), ledger)

    def _held(self, spark: SparkSession, table: str) -> Ledger | None:
        if table not in self._ledgers:
            self._ledgers[table] = self.tables.ledger(spark, table)
        return self._ledgers[table]

    def _layout(self, spark: SparkSession, table: str) -> Layout:
        """Return the columns of a table that depend on events."""
        if table not in self._layouts:
            fixed = {*FIXED_COLUMNS, *LATEST_COLUMNS, RESCUED}
            stored = {
                column.name: column.dataType.simpleString() for column in self.tables.columns(spark, table)
            }
            if LOG_EPOCH not in stored:
                self._older.add(table)
            self._layouts[table] = {
                name: Type(text) for name, text in stored.items() if name not in fixed and text in set(Type)
            }
        return self._layouts[table]

    def _columns(self, table: str, layout: Layout) -> T.StructType:
        names = columns_of_table(table, has_content=self.has_variants)
        fixed = {name: TABLE_COLUMNS[name] for name in names}
        if self.has_variants:
            fixed |= {name: "variant" for name in (PROPERTIES, TRAITS) if name in fixed}
        dynamic = {} if table in WHOLE else {**layout, RESCUED: "string"}
        return struct_of(fixed | dynamic)


def _as_text(columns: T.StructType) -> T.StructType:
    """Return the columns as Python gives them: a variant as JSON text."""
    return T.StructType(
        [
            T.StructField(c.name, T.StringType() if isinstance(c.dataType, T.VariantType) else c.dataType)
            for c in columns
        ]
    )


def _with_variants(rows: DataFrame, columns: T.StructType) -> DataFrame:
    variants = [c.name for c in columns if isinstance(c.dataType, T.VariantType)]
    return rows.withColumns({name: F.try_parse_json(F.col(name)) for name in variants}) if variants else rows


def _call(calls: str, owner: str) -> Column:
    """Return a stored call as the event that it was, as far as its traits go."""
    field = "groupId" if owner == "group_id" else "userId"
    kind = next(kind for kind, table in TYPE_TABLES.items() if table == calls)
    named = F.to_json(F.struct(F.lit(kind).alias("type"), F.col(owner).alias(field)))
    traits = F.coalesce(F.col(TRAITS), F.lit("null"))
    # The traits are JSON already: they go before the closing brace.
    return F.concat(
        F.substring(named, F.lit(1), F.length(named) - 1), F.lit(',"traits":'), traits, F.lit("}")
    )
