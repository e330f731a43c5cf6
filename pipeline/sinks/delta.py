"""
A Delta table, at a path or in a catalog: the ledger is the user metadata of the commit, its number the
table's transaction version.

Of two jobs that commit number N, Delta fails the second one or leaves out its rows. So the job reads the
ledger again after each commit and compares it with its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from pipeline.errors import PipelineError
from pipeline.runtime.folder import require_empty
from pipeline.sinks.catalog import is_in_catalog, is_of_session
from pipeline.sinks.days import Days
from pipeline.sinks.layout import DEFAULT_LAYOUT, StorageLayout, stored_properties
from pipeline.sinks.ledger import Ledger
from pipeline.sources.records import is_table_name, quoted_table

APPLICATION = "gateway-ledger"
HISTORY_READ = 20
"""Newest commits to search for the ledger first; maintenance adds three at a time."""

METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
RETENTION_CHECK_CONF = "spark.databricks.delta.retentionDurationCheck.enabled"


_NO_TABLE = ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
"""What it says of a path that is none."""

_NO_DELTA = ("DELTA_ONLY_OPERATION", "EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE")
"""What Delta says of a name that is a table of another format, or a view."""


@dataclass(frozen=True)
class DeltaTable:
    """A sink of rows, partitioned by these columns."""

    path: str
    """Or table:NAME, of a table of a catalog."""
    folders: tuple[str, ...] = ()
    layout: StorageLayout = DEFAULT_LAYOUT
    """What the user asks of it, if it is new."""

    def ledger(self, spark: SparkSession) -> Ledger | None:
        if self._is_named and not is_in_catalog(spark, self.path):
            return None
        try:
            ledgers = self._ledgers(spark, HISTORY_READ) or self._ledgers(spark, None)
        except AnalysisException as err:
            if self._is_named and err.getCondition() in _NO_DELTA:
                raise PipelineError(f"{self.path} is no Delta table: name another output") from err
            if err.getCondition() not in _NO_TABLE:
                raise
            require_empty(spark, self.path)
            return None
        if self.layout != DEFAULT_LAYOUT:
            self.layout.check(self.path, self._layout_there(spark))
        if not ledgers:
            if spark.table(self.name).isEmpty():
                return None  # a job was killed after it had made the table, or its owner made it
            raise PipelineError(f"the Delta table {self.path} has no ledger of this job: name another output")
        return max(ledgers, key=lambda ledger: ledger.commit)

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        spark, writer = rows.sparkSession, rows.write.format("delta").mode("append")
        if not self._is_there(spark):
            if self._is_named or self.layout != DEFAULT_LAYOUT:
                # By name Delta would not store the ledger in the commit that creates the table.
                self._create(spark, rows.schema)
            else:
                writer = writer.partitionBy(*self.folders)
        writer = writer.option("txnAppId", APPLICATION).option("txnVersion", ledger.commit)
        # Adds columns that an older table lacks.
        writer = writer.option("mergeSchema", "true")
        writer = writer.option("userMetadata", ledger.to_json())
        if self._is_named:
            writer.saveAsTable(self.name)
        else:
            writer.save(self.path)
        # The last commit is this one, unless maintenance came between.
        if ledger not in self._ledgers(spark, 1) and self.ledger(spark) != ledger:
            raise PipelineError(f"another job writes into {self.path}: stop one of them")

    def replace(self, rows: DataFrame, ledger: Ledger, days: Days) -> None:
        """Put rows in the place of those days, in one commit that repeats the ledger."""
        writer = rows.writeTo(self.name).option("mergeSchema", "true")
        writer.option("userMetadata", ledger.to_json()).overwrite(days.where)

    def rewrite(self, rows: DataFrame, ledger: Ledger | None) -> None:
        """Replace all rows and the types of columns, in one commit that repeats the ledger."""
        spark = rows.sparkSession
        there, location = self._layout_there(spark), self._detail(spark)["location"]
        writer = rows.write.format("delta").mode("overwrite").partitionBy(*there.partition_by)
        writer = writer.option("overwriteSchema", "true")
        with _repeating(spark, ledger):
            if self._is_named and not is_of_session(self.path):
                writer.saveAsTable(self.name)
            else:
                # By name Delta would write the columns into the session's catalog, too, and refuse streams.
                writer.save(location)
            if there.cluster_by:  # which a new schema has not
                spark.sql(f"ALTER TABLE {self.name} CLUSTER BY ({', '.join(there.cluster_by)})")

    def compact(self, spark: SparkSession, *, before: str, keep: timedelta) -> None:
        """
        Merge the small files of the days before one, beside the stream, and delete old files.

        Args:
            before: a day.
            keep: how long files that no longer count stay, for readers and running batches.
        """
        ledger = self.ledger(spark)
        if ledger is None:
            raise PipelineError(f"there is nothing in {self.path}")
        with _repeating(spark, ledger):
            # Of a table that is partitioned or clustered in another way Delta takes no days.
            is_by_day = "dt" in self._layout_there(spark).partition_by
            spark.sql(f"OPTIMIZE {self.name}" + (f" WHERE dt < '{before}'" if is_by_day else ""))
            vacuum(spark, self.name, keep)

    def change(self, spark: SparkSession, statement: str) -> None:
        """Run a statement that changes rows, in one commit that repeats the ledger."""
        with _repeating(spark, self.ledger(spark)):
            spark.sql(statement)

    def expire(self, spark: SparkSession, keep: timedelta) -> None:
        """Delete the files that no version younger than this has."""
        with _repeating(spark, self.ledger(spark)):
            vacuum(spark, self.name, keep)

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return quoted_table(self.path) if self._is_named else f"delta.`{self.path}`"

    @property
    def _is_named(self) -> bool:
        return is_table_name(self.path)

    def _create(self, spark: SparkSession, columns: StructType) -> None:
        ddl = ", ".join(f"`{column.name}` {column.dataType.simpleString()}" for column in columns)
        clauses = self.layout.clauses(self.folders)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self.name} ({ddl}) USING delta{clauses}")

    def _is_there(self, spark: SparkSession) -> bool:
        if self._is_named:
            return is_in_catalog(spark, self.path)
        try:
            return bool(self._detail(spark)["format"] == "delta")
        except AnalysisException as err:
            if err.getCondition() not in _NO_TABLE:
                raise
            return False

    def _detail(self, spark: SparkSession) -> Row:
        return spark.sql(f"DESCRIBE DETAIL {self.name}").collect()[0]

    def _layout_there(self, spark: SparkSession) -> StorageLayout:
        detail = self._detail(spark)
        parts, clusters = detail["partitionColumns"], detail["clusteringColumns"]
        return StorageLayout(tuple(parts), tuple(clusters), stored_properties(spark, self.name))

    def _ledgers(self, spark: SparkSession, commits: int | None) -> list[Ledger]:
        """Return the ledgers of the last commits, or of the whole history."""
        limit = "" if commits is None else f" LIMIT {commits}"
        history = spark.sql(f"DESCRIBE HISTORY {self.name}{limit}").select("userMetadata").collect()
        return ledgers_in(row["userMetadata"] or "" for row in history)


def vacuum(spark: SparkSession, name: str, keep: timedelta) -> None:
    """Delete the files of a table that no version younger than this has."""
    spark.conf.set(RETENTION_CHECK_CONF, "false")
    try:
        spark.sql(f"VACUUM {name} RETAIN {keep.total_seconds() / 3600} HOURS")
    finally:
        spark.conf.unset(RETENTION_CHECK_CONF)


@contextmanager
def _repeating(spark: SparkSession, ledger: Ledger | None) -> Iterator[None]:
    """Let each commit repeat the ledger: Delta deletes history after a month."""
    if ledger is not None:
        spark.conf.set(METADATA_CONF, ledger.to_json())
    try:
        yield
    finally:
        spark.conf.unset(METADATA_CONF)


def ledgers_in(messages: Iterable[str]) -> list[Ledger]:
    """Return the ledgers among the user metadata of a table's commits."""
    return [Ledger.from_json(text) for text in messages if text.startswith('{"version":')]
