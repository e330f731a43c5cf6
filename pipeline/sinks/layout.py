"""How a table of Delta or Iceberg is laid out when it is made: partitions, clustering, properties."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import partitioning

from pipeline.errors import PipelineError, UsageError

COLUMN = re.compile(r"\w+")
TIME_PART = re.compile(r"(year|month|day|hour)s?\((\w+)\)")
BUCKET = re.compile(r"bucket\((\d+),(\w+)\)")
CLUSTERED_MAX = 4
"""Columns, by Delta."""


@dataclass(frozen=True)
class StorageLayout:
    """What the user asks of a table; what is empty is left to the job."""

    partition_by: tuple[str, ...] = ()
    """Columns, and for Iceberg days(timestamp), bucket(16, user_id) and so on."""
    cluster_by: tuple[str, ...] = ()
    """Columns, of Delta."""
    properties: tuple[tuple[str, str], ...] = ()

    def of_columns(self, names: Collection[str]) -> "StorageLayout":
        """Return what a table with these columns can have of it."""
        partition_by = tuple(part for part in self.partition_by if column_of(part) in names)
        cluster_by = tuple(name for name in self.cluster_by if name in names)
        return StorageLayout(partition_by, cluster_by, self.properties)

    def clauses(self, folders: Sequence[str], properties: Mapping[str, str] | None = None) -> str:
        """
        Return the clauses of CREATE TABLE.

        Args:
            folders: the columns to partition by where nothing is asked.
            properties: further ones, which the user's win over.
        """
        text = ""
        if self.cluster_by:
            text += f" CLUSTER BY ({', '.join(self.cluster_by)})"
        elif parts := self.partition_by or tuple(folders):
            text += f" PARTITIONED BY ({', '.join(parts)})"
        if given := {**(properties or {}), **dict(self.properties)}:
            pairs = (f"{_literal(name)} = {_literal(value)}" for name, value in given.items())
            text += f" TBLPROPERTIES ({', '.join(pairs)})"
        return text

    def check(self, path: str, there: "StorageLayout") -> None:
        """Raise PipelineError: a table that exists is laid out in another way."""
        own = dict(there.properties)
        differs = [
            f"its property {name} is {own.get(name, 'not set')}, and --table-property says {value}"
            for name, value in self.properties
            if own.get(name) != value
        ]
        for option, done, asked, has in (
            ("partition", "partitioned", self.partition_by, there.partition_by),
            ("cluster", "clustered", self.cluster_by, there.cluster_by),
        ):
            if asked and asked != has:
                says = f"and --{option}-by says {', '.join(asked)}"
                differs.append(f"it is {done} by {', '.join(has) or 'nothing'}, {says}")
        if differs:
            raise PipelineError(
                f"{path} exists, and {'; '.join(differs)}: these options are for a new table, so leave "
                "them out, change the table by ALTER TABLE, or name another output"
            )


DEFAULT_LAYOUT = StorageLayout()
"""As the job does."""


def layout_of(
    partition_by: Iterable[str] | None,
    cluster_by: Iterable[str] | None,
    properties: Iterable[tuple[str, str]] | None,
    *,
    lake_format: str,
    columns: Collection[str],
) -> StorageLayout:
    """
    Return the layout that options ask for.

    Args:
        partition_by: columns, or transforms of columns.
        cluster_by: columns.
        properties: names and values.
        lake_format: of the table.
        columns: that the job's tables have.

    Raises:
        UsageError: the format has no such layout, or the tables no such column.
    """
    layout = StorageLayout(
        tuple(map(canonical, partition_by or ())), tuple(cluster_by or ()), tuple(properties or ())
    )
    if lake_format == "parquet" and layout != DEFAULT_LAYOUT:
        raise UsageError("a folder of Parquet files has no layout: use --format delta or iceberg")
    if lake_format == "iceberg" and layout.cluster_by:
        raise UsageError("--cluster-by is Delta's: partition an Iceberg table by bucket(16, COLUMN)")
    transformed = [part for part in layout.partition_by if not COLUMN.fullmatch(part)]
    if lake_format == "delta" and transformed:
        raise UsageError(f"Delta partitions by columns, not by {transformed[0]}: use dt, or --cluster-by")
    if layout.partition_by and layout.cluster_by:
        raise UsageError("a Delta table is either partitioned or clustered: leave one of the options out")
    if len(layout.cluster_by) > CLUSTERED_MAX:
        raise UsageError(f"Delta clusters by at most {CLUSTERED_MAX} columns")
    for part in (*layout.partition_by, *layout.cluster_by):
        if column_of(part) not in columns:
            raise UsageError(f"there is no column {column_of(part)} (docs/pipeline/catalogs.md)")
    return layout


def canonical(part: str) -> str:
    """Return a partition as Spark writes it. Raises UsageError."""
    text = re.sub(r"\s", "", part)
    if found := TIME_PART.fullmatch(text):
        return f"{found[1]}s({found[2]})"
    if found := BUCKET.fullmatch(text):
        return f"bucket({found[1]}, {found[2]})"
    if COLUMN.fullmatch(text):
        return text
    raise UsageError(
        f"{part!r} is no partition: use a column, or of Iceberg years, months, days or hours(COLUMN), or "
        "bucket(16, COLUMN)"
    )


def column_of(part: str) -> str:
    """Return the column of a partition."""
    return part.rstrip(")").replace("(", " ").rpartition(" ")[2]


def as_transform(part: str) -> Column:
    """Return a partition for DataFrameWriterV2. Raises UsageError."""
    known = canonical(part)
    if found := BUCKET.fullmatch(known.replace(" ", "")):
        return partitioning.bucket(int(found[1]), found[2])
    if found := TIME_PART.fullmatch(known):
        transform = {
            "year": partitioning.years,
            "month": partitioning.months,
            "day": partitioning.days,
            "hour": partitioning.hours,
        }[found[1]]
        return transform(found[2])
    return F.col(known)


def stored_properties(spark: SparkSession, name: str) -> tuple[tuple[str, str], ...]:
    """Return the properties of a table, by its name in SQL."""
    return tuple((row["key"], row["value"]) for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect())


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
