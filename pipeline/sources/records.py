"""
Sources: where records are read from, and which of them. Every source yields schema.RECORD.

    kafka://host:port[,host:port]/topic    committed records only, always
    log://DATA_DIR[?topic=events]          the embedded log of a gateway on this machine
    parquet://PATH                         an archive; delta://PATH and iceberg://PATH too
    iceberg://table:CATALOG.SPACE.NAME     one of a catalog that Spark's settings name
"""

import json
import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline import embedded_log
from pipeline.errors import UsageError
from pipeline.schema import ARCHIVE, RECORD
from pipeline.sources.kafka import KafkaSettings, standings

KAFKA_OPTIONS = {
    # Kafka's own default would show records of aborted and open transactions.
    "kafka.isolation.level": "read_committed",
    # Records that retention took before the job saw them are an alarm, not a shrug.
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    # Large fetches: a third more rows for the same CPU than with the client's defaults.
    "kafka.max.poll.records": "5000",
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
}
NAMED = "table:"
EARLIEST, LATEST = -2, -1  # the connector's words in offset maps

Offsets: TypeAlias = dict[int, int]


class Source:
    """Where records are; its text is what `--source` was given."""

    @property
    def formats(self) -> frozenset[str]:
        """What a session must know to read it, beside Parquet."""
        return frozenset()


@dataclass(frozen=True)
class KafkaSource(Source):
    """A topic."""

    brokers: str
    topic: str

    @property
    def formats(self) -> frozenset[str]:
        return frozenset({"kafka"})

    def __str__(self) -> str:
        return f"kafka://{self.brokers}/{self.topic}"


@dataclass(frozen=True)
class LogSource(Source):
    """A topic of an embedded log."""

    data_dir: str
    topic: str

    def __str__(self) -> str:
        return f"log://{self.data_dir}?topic={self.topic}"


@dataclass(frozen=True)
class LakeSource(Source):
    """What the archive job stored: a folder of Parquet files, a Delta or an Iceberg table."""

    format: str
    path: str

    @property
    def formats(self) -> frozenset[str]:
        return frozenset({self.format} - {"parquet"})

    def __str__(self) -> str:
        return f"{self.format}://{self.path}"


@dataclass(frozen=True)
class Span:
    """Which records: all, or those between times and offsets; starts inclusive, ends exclusive."""

    since: datetime | None = None  # log time
    until: datetime | None = None
    from_offsets: Offsets | None = None  # by partition; a missing one has no bound
    to_offsets: Offsets | None = None

    @property
    def is_everything(self) -> bool:
        return self == Span()

    @property
    def has_times(self) -> bool:
        return self.since is not None or self.until is not None

    @property
    def of_times(self) -> "Span":
        """The same without its offsets."""
        return Span(self.since, self.until)


def parse_source(text: str) -> Source:
    """Return the source that a `--source` names. Raises UsageError."""
    scheme, separator, rest = text.partition("://")
    if separator and rest:
        if scheme == "kafka":
            brokers, _, topic = rest.partition("/")
            if brokers and topic:
                return KafkaSource(brokers, topic)
        if scheme == "log":
            path, _, query = rest.partition("?")
            # Spark's workers have another working directory.
            folder = str(Path(path).absolute())
            return LogSource(folder, parse_qs(query).get("topic", ["events"])[0])
        if scheme in ("parquet", "delta", "iceberg"):
            return LakeSource(scheme, absolute(rest))
    raise UsageError(
        f"{text!r} is no source: use kafka://host:port/topic, log://DATA_DIR, parquet://PATH, "
        "delta://PATH or iceberg://PATH"
    )


def is_named(path: str) -> bool:
    """Whether this is no path, but a table that a catalog knows by name."""
    return path.startswith(NAMED)


def quoted(path: str) -> str:
    """Return a named table as SQL writes it."""
    return ".".join(f"`{part}`" for part in path.removeprefix(NAMED).split("."))


def absolute(path: str) -> str:
    """
    Return a path as tables want it: one without a scheme is a local one, seen from here.

    Tables remember where their files are, and Iceberg takes a bare word for a table of a catalog.
    """
    return path if is_named(path) or re.match(r"[a-z][a-z0-9+.-]*:/", path) else os.path.abspath(path)


def read_records(spark: SparkSession, source: Source, span: Span) -> DataFrame:
    """Return the records of a span as they are now, in schema.RECORD."""
    match source:
        case KafkaSource():
            reader = spark.read.format("kafka").options(**_kafka_options(source, "batch"))
            if span.from_offsets or span.to_offsets:
                first, end = _kafka_bounds(source, span)
                reader = reader.options(startingOffsets=first, endingOffsets=end)
            records, left = reader.load().transform(_from_kafka), span.of_times
        case LogSource():
            options = {"path": source.data_dir, "topic": source.topic}
            options |= {
                "starting": json.dumps(span.from_offsets or {}),
                "ending": json.dumps(span.to_offsets or {}),
            }
            records, left = spark.read.format(embedded_log.FORMAT).options(**options).load(), span.of_times
        case LakeSource():
            records, left = read_lake(spark, source).transform(from_archive), span
        case _:
            raise UsageError(f"{source} is no source")
    return records.transform(within, left)


def stream_records(
    spark: SparkSession,
    source: Source,
    *,
    job: str,
    offsets_per_batch: int,
    span: Span = Span(),
    starting: Offsets | None = None,
) -> DataFrame:
    """
    Return the records of a source as a stream, in schema.RECORD.

    Args:
        starting: where it begins without a checkpoint; None for the source's beginning, which is
            also that of a partition left out.
    """
    match source:
        case KafkaSource():
            options = _kafka_options(source, job) | {"maxOffsetsPerTrigger": str(offsets_per_batch)}
            options["startingOffsets"] = (
                "earliest" if starting is None else _kafka_bounds(source, Span(from_offsets=starting))[0]
            )
            records = spark.readStream.format("kafka").options(**options).load().transform(_from_kafka)
        case LogSource():
            options = {"path": source.data_dir, "topic": source.topic}
            options["starting"] = json.dumps(starting or {})
            records = spark.readStream.format(embedded_log.FORMAT).options(**options).load()
        case LakeSource(format="parquet"):
            files = spark.readStream.schema(ARCHIVE).option("maxFilesPerTrigger", 16)
            records = files.parquet(source.path).transform(from_archive)
        case LakeSource():
            reader = spark.readStream.format(source.format)
            stored = reader.table(quoted(source.path)) if is_named(source.path) else reader.load(source.path)
            records = stored.transform(from_archive)
        case _:
            raise UsageError(f"{source} is no source")
    return records.transform(within, span)


def read_lake(spark: SparkSession, source: LakeSource) -> DataFrame:
    """Return an archive as it is stored, in schema.ARCHIVE."""
    if is_named(source.path):
        return spark.read.table(quoted(source.path))
    reader = spark.read.format(source.format)
    return (reader.schema(ARCHIVE) if source.format == "parquet" else reader).load(source.path)


def from_archive(archive: DataFrame) -> DataFrame:
    """Turn schema.ARCHIVE back into schema.RECORD; an archive that was begun without `gs` has none."""
    has_progress = "gs" in archive.columns
    return archive.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.coalesce("message_id_bytes", F.col("message_id").cast("binary")).alias("key"),
        F.coalesce("value_bytes", F.col("value").cast("binary")).alias("value"),
        "source",
        "gw",
        F.col("gs") if has_progress else F.lit(None).cast("binary").alias("gs"),
    )


def within(records: DataFrame, span: Span) -> DataFrame:
    """Keep what lies in the span."""
    conditions: list[Column] = []
    if span.since:
        conditions.append(F.col("timestamp") >= F.lit(span.since))
    if span.until:
        conditions.append(F.col("timestamp") < F.lit(span.until))
    for partition, first in (span.from_offsets or {}).items():
        conditions.append((F.col("partition") != partition) | (F.col("offset") >= first))
    for partition, end in (span.to_offsets or {}).items():
        conditions.append((F.col("partition") != partition) | (F.col("offset") < end))
    for condition in conditions:
        records = records.where(condition)
    return records.select(*RECORD.names)


def _kafka_options(source: KafkaSource, job: str) -> dict[str, str]:
    return {
        **KafkaSettings.read().spark_options(),
        **KAFKA_OPTIONS,
        "kafka.bootstrap.servers": source.brokers,
        "subscribe": source.topic,
        "groupIdPrefix": f"gateway-spark-{job}",
    }


def _kafka_bounds(source: KafkaSource, span: Span) -> tuple[str, str]:
    """Return the first and the end offsets as the connector wants them: every partition must be named."""
    partitions = standings(source.brokers, source.topic)
    first = {p: (span.from_offsets or {}).get(p, EARLIEST) for p in partitions}
    end = {p: (span.to_offsets or {}).get(p, LATEST) for p in partitions}
    return json.dumps({source.topic: first}), json.dumps({source.topic: end})


def _from_kafka(messages: DataFrame) -> DataFrame:
    return messages.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        # Python cannot read what is no UTF-8, and any producer may send it.
        F.try_validate_utf8(_header("source").cast("string")).alias("source"),
        _header("gw").alias("gw"),
        _header("gs").alias("gs"),
    )


def _header(name: str) -> Column:
    """Return the only header of this name; null if there is none or a second one."""
    # Without a lambda: Spark generates no code for one, nor for anything beside it.
    names = F.col("headers")["key"]
    is_only = F.size(names) - F.size(F.array_remove(names, name)) == 1
    place = F.array_position(names, name).cast("int") - 1
    return F.when(is_only, F.get("headers", place)["value"])
