"""
Erases persons from what the jobs have stored: archives, the tables of the job `tables`, and sessions.

In an archive a row stays, with its place, its key and the mark of an erasure, since a missing row is a loss
to an audit. Rows of tables and sessions are deleted, and the latest traits are computed anew of what is left.
Each step finds what is left to do by the content of the output. So whatever was cut off, do it again.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial, reduce
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime.session import IcebergTable
from pipeline.schema import ARCHIVE, LOG_EPOCH, SESSIONS, by_day
from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.lake import lake_sink
from pipeline.sinks.table_store import OF_THE_JOB, TableStore
from pipeline.sinks.tables import TableLimits, TablesSink
from pipeline.sources.local import BATCH_ROWS, parquet_files
from pipeline.sources.records import LakeSource, is_table_name, quoted_table
from pipeline.transforms.erased import (
    KEPT_COLUMNS,
    Batches,
    Change,
    Find,
    Persons,
    erased_rows,
    in_archive,
    in_sessions,
    in_table,
    listed,
    not_listed,
    with_erased_rows,
)
from pipeline.transforms.table_layout import COLUMNS_MAX, TABLES_MAX
from pipeline.transforms.table_names import LATEST_TABLES

ARCHIVE_KEYS = ("topic", LOG_EPOCH, "partition", "offset", "dt")
TABLE_KEYS = (LOG_EPOCH, "log_partition", "log_offset", "dt")
SESSION_KEYS = ("user", "source", "began", "dt")
_OWNERS = ("user_id", "anonymous_id", "previous_id", "value")
_DELETE = "DELETE"
_HALF_WRITTEN = ".erasing"


class Kind(StrEnum):
    """What an output holds."""

    ARCHIVE = "archive"
    TABLES = "tables"
    SESSIONS = "sessions"


class Erased(NamedTuple):
    """The rows of listed persons that an output, or one table of it, had."""

    output: str
    rows: int
    newest: datetime | None = None
    """Log time of the newest one, of an archive."""


@dataclass(frozen=True)
class Eraser:
    """Erases the listed persons from outputs."""

    spark: SparkSession
    persons: Persons
    keep: timedelta
    """How long versions of before stay, for their readers."""
    is_dry: bool = False
    """Only count."""

    def erase(self, lake: LakeSource) -> list[Erased]:
        """
        Erase them from one output.

        Raises:
            PipelineError: it is none of Kind, or its files cannot be replaced.
        """
        kind = kind_of(self.spark, lake)
        if kind is Kind.TABLES:
            return self._erase_tables(TableStore(lake))
        is_archive = kind is Kind.ARCHIVE
        find = in_archive if is_archive else in_sessions
        if lake.format == "parquet":
            return [
                self._rewrite(lake.path, find, with_erased_rows if is_archive else partial(not_listed, find))
            ]
        columns = ARCHIVE if is_archive else by_day(SESSIONS)
        sink = lake_sink(lake, columns)
        assert isinstance(sink, DeltaTable | IcebergLake)
        stored = _read(self.spark, lake)
        if is_archive:
            rows = stored.mapInArrow(partial(erased_rows, self.persons), stored.schema)
            changed = [name for name in stored.columns if name not in KEPT_COLUMNS]
            updates = ", ".join(f"t.`{name}` = s.`{name}`" for name in changed)
            keys = _keys_in(stored, ARCHIVE_KEYS)
            return [self._change(sink, lake, rows, keys, f"UPDATE SET {updates}")]
        names = [name for name in (*SESSION_KEYS, "visitor") if name in stored.columns]
        read = stored.select(*names)
        rows = read.mapInArrow(partial(listed, find, self.persons), read.schema)
        return [self._change(sink, lake, rows, SESSION_KEYS, _DELETE)]

    def _erase_tables(self, store: TableStore) -> list[Erased]:
        existing = store.names(self.spark)
        tables = sorted(existing - OF_THE_JOB)
        if store.lake.format == "parquet":
            return [
                self._rewrite(store.path(table), in_table, partial(not_listed, in_table)) for table in tables
            ]
        if not tables:
            return []
        found = self._places(store, tables).persist(StorageLevel.DISK_ONLY)
        try:
            erased = [self._delete_from(store, table, found) for table in tables]
        finally:
            found.unpersist()
        if not self.is_dry:
            self._compute_latest(store, existing)
        return erased

    def _places(self, store: TableStore, tables: Sequence[str]) -> DataFrame:
        """Return the places of their rows in some tables, and `table`, found in one pass over all."""
        owners = []
        for table in tables:
            stored = store.read(self.spark, table)
            names = [name for name in (*TABLE_KEYS, *_OWNERS) if name in stored.columns]
            owners.append(stored.select(F.lit(table).alias("table"), *names))
        together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), owners)
        rows = together.mapInArrow(partial(listed, in_table, self.persons), together.schema)
        return rows.select("table", *_keys_in(rows, TABLE_KEYS))

    def _delete_from(self, store: TableStore, table: str, found: DataFrame) -> Erased:
        sink = store.sink(table, store.columns(self.spark, table))
        assert isinstance(sink, DeltaTable | IcebergLake)
        lake = LakeSource(store.lake.format, store.path(table))
        keys = _keys_in(store.read(self.spark, table), TABLE_KEYS)
        return self._change(sink, lake, found.where(F.col("table") == table), keys, _DELETE)

    def _compute_latest(self, store: TableStore, existing: frozenset[str]) -> None:
        """Compute the latest traits anew, always: a run that was cut off may have deleted their calls."""
        sink = TablesSink(store, TableLimits(TABLES_MAX, COLUMNS_MAX))
        for calls, table in LATEST_TABLES.items():
            if table in existing:
                sink.compute_anew(self.spark, calls)
                store.expire_latest(self.spark, table, self.keep)

    def _change(
        self,
        sink: DeltaTable | IcebergLake,
        lake: LakeSource,
        rows: DataFrame,
        keys: Sequence[str],
        action: str,
    ) -> Erased:
        """Change the rows of a table that have the keys of these rows, and delete older versions."""
        found = rows.dropDuplicates(list(keys)).persist(StorageLevel.DISK_ONLY)
        try:
            newest = F.max("timestamp") if "timestamp" in rows.columns else F.lit(None)
            count, days, newest_us = found.agg(
                F.count(F.lit(1)), F.collect_set("dt"), F.unix_micros(newest.cast("timestamp"))
            ).collect()[0]
            if not self.is_dry:
                if count:
                    found.createOrReplaceTempView(_VIEW)
                    sink.change(self.spark, _merge(_name(lake), keys, days, action))
                    self.spark.catalog.dropTempView(_VIEW)
                sink.expire(self.spark, self.keep)
        finally:
            found.unpersist()
        return Erased(str(lake), count, _time(newest_us))

    def _rewrite(self, path: str, find: Find, change: Change) -> Erased:
        """Put a file without them in the place of each file of a folder that has rows of them."""
        folder, count, newest = Path(path), 0, list[int]()
        if not folder.is_dir():
            raise PipelineError(
                f"the files of {path} cannot be replaced: copy it by `compact --out`, which leaves out what "
                "is erased, and delete it"
            )
        if (folder / "_spark_metadata").exists():
            raise PipelineError(
                f"Spark's own log lists the files of {path}: compute it anew into another folder"
            )
        for left in folder.rglob(f".*{_HALF_WRITTEN}"):
            left.unlink()
        for file in parquet_files(folder):
            with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as parquet:
                batches = (batch.filter(pa.array(find(self.persons, batch))) for batch in _batches(parquet))
                rows = pa.Table.from_batches(batches, parquet.schema_arrow)
                if rows.num_rows and not self.is_dry:
                    _replace(file, parquet, partial(change, self.persons))
            count += rows.num_rows
            if "timestamp" in rows.schema.names and rows.num_rows:
                newest += [us for us in rows["timestamp"].cast(pa.int64()).to_pylist() if us is not None]
        return Erased(f"parquet://{path}", count, _time(max(newest, default=None)))


_VIEW = "gateway_erased"


def kind_of(spark: SparkSession, lake: LakeSource) -> Kind:
    """Return what an output holds. Raises PipelineError: none of Kind."""
    if TableStore(lake).holds_tables(spark):
        return Kind.TABLES
    rows = _read(spark, lake)
    if {"message_id", "value", "offset"} <= set(rows.columns):
        return Kind.ARCHIVE
    if {"user", "began", "ended"} <= set(rows.columns):
        return Kind.SESSIONS
    raise UsageError(f"{lake} holds no archive, tables or sessions: nothing that names a person")


def _read(spark: SparkSession, lake: LakeSource) -> DataFrame:
    """Return the rows of an output with the columns that it has."""
    if is_table_name(lake.path):
        return spark.read.table(quoted_table(lake.path))
    return spark.read.format(lake.format).load(lake.path)


def _keys_in(rows: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return those of some keys that rows have; those of before have no log_epoch."""
    return [key for key in keys if key in rows.columns]


def _name(lake: LakeSource) -> str:
    return IcebergTable(lake.path).sql_name if lake.format == "iceberg" else DeltaTable(lake.path).name


def _merge(table: str, keys: Sequence[str], days: Sequence[str], action: str) -> str:
    is_same = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in keys)
    listed_days = ", ".join(f"'{day}'" for day in sorted(days))
    where = f"{is_same} AND t.dt IN ({listed_days})"
    return f"MERGE INTO {table} t USING {_VIEW} s ON {where} WHEN MATCHED THEN {action}"


def _batches(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    yield from parquet.iter_batches(BATCH_ROWS)


def _replace(
    file: Path, parquet: pq.ParquetFile, change: Callable[[Batches], Iterator[pa.RecordBatch]]
) -> None:
    """Replace a file at once by one with changed rows; readers see the one or the other."""
    half_written = file.with_name(f".{file.name}{_HALF_WRITTEN}")
    with half_written.open("wb") as out:
        with pq.ParquetWriter(out, parquet.schema_arrow) as writer:
            for batch in change(_batches(parquet)):
                writer.write_batch(batch)
        out.flush()
        os.fsync(out.fileno())
    # Hadoop's checksum of the file before: without one nothing is compared.
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    half_written.replace(file)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)
