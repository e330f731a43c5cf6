"""
Sources and selections of records. Every source yields schema.RECORD.

    kafka://host:port[,host:port]/topic    committed records only, always
    log://DATA_DIR[?topic=events]          the embedded log of a gateway on this machine
    parquet://PATH                         an archive, also delta://PATH and iceberg://PATH
    delta://table:CATALOG.SCHEMA.NAME      a table of a catalog that Spark's settings configure, also iceberg://
"""

import json
import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dedupe.model.record import HEADER_FENCE_TEST
from pipeline.errors import UsageError
from pipeline.schema import ARCHIVE, LOG_EPOCH
from pipeline.sources import embedded_log
from pipeline.sources.kafka import KafkaLogin, KafkaSettings, topic_positions

KAFKA_OPTIONS = {
    # Kafka's default shows records of aborted and open transactions.
    "kafka.isolation.level": "read_committed",
    # The job fails if retention deletes records before the job has read them.
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    # Larger fetches than the client's defaults need less CPU a row.
    "kafka.max.poll.records": "5000",
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
}
SKIPPED_CHANGES = {
    # An archive only grows, but for days that a backfill replaces and persons that are erased: these commits
    # hold nothing new, and each would end the stream.
    "skipChangeCommits": "true",  # of Delta
    "streaming-skip-overwrite-snapshots": "true",  # of Iceberg
    "streaming-skip-delete-snapshots": "true",
}
TABLE_PREFIX = "table:"
EARLIEST, LATEST = -2, -1  # as the connector writes them in offset maps

Offsets: TypeAlias = dict[int, int]


class Source:
    """A place of records; its text is the value of `--source`."""

    @property
    def formats(self) -> frozenset[str]:
        """The formats beside Parquet that a session needs to read it."""
        return frozenset()


@dataclass(frozen=True)
class KafkaSource(Source):
    """A topic."""

    brokers: str
    topic: str
    login: KafkaLogin | None = field(default=None, repr=False)
    """None: that of the environment."""
    client_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Of Spark's source, which pipeline/sources/kafka_options.py has checked; they win."""

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
    """An archive: a folder of Parquet files, a Delta or an Iceberg table."""

    format: str
    path: str
    log_epoch: int | None = None
    """The log whose rows count; None for all."""

    @property
    def formats(self) -> frozenset[str]:
        return frozenset({self.format} - {"parquet"})

    def __str__(self) -> str:
        return f"{self.format}://{self.path}" + (f", log_epoch {self.log_epoch}" if self.log_epoch else "")


@dataclass(frozen=True)
class Selection:
    """All records, or those between times and offsets; starts inclusive, ends exclusive."""

    since: datetime | None = None  # log time
    until: datetime | None = None
    from_offsets: Offsets | None = None  # by partition; one that is left out has no bound
    to_offsets: Offsets | None = None

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    @property
    def has_times(self) -> bool:
        return self.since is not None or self.until is not None

    @property
    def of_times(self) -> "Selection":
        """The selection by its times alone."""
        return Selection(self.since, self.until)


def parse_source(text: str) -> Source:
    """Return the source of a `--source` option. Raises UsageError."""
    scheme, separator, rest = text.partition("://")
    if separator and rest:
        if scheme == "kafka":
            brokers, _, topic = rest.partition("/")
            if brokers and topic:
                return KafkaSource(brokers, topic)
        if scheme == "log":
            path, _, query = rest.partition("?")
            # Absolute, since Spark's workers have another working directory.
            return LogSource(str(Path(path).absolute()), parse_qs(query).get("topic", ["events"])[0])
        if scheme in ("parquet", "delta", "iceberg"):
            return LakeSource(scheme, absolute(rest))
    raise UsageError(
        f"{text!r} is no source: use kafka://host:port/topic, log://DATA_DIR, parquet://PATH, "
        "delta://PATH or iceberg://PATH"
    )


def is_table_name(path: str) -> bool:
    """Whether this names a table of a catalog, and is no path."""
    return path.startswith(TABLE_PREFIX)


def quoted_table(path: str) -> str:
    """Return the name of a table in SQL."""
    return ".".join(f"`{part}`" for part in path.removeprefix(TABLE_PREFIX).split("."))


def absolute(path: str) -> str:
    """
    Return a path without a scheme as an absolute local path; any other one unchanged.

    Tables store the paths of their files, and Iceberg takes a relative path for a table of a catalog.
    """
    return path if is_table_name(path) or re.match(r"[a-z][a-z0-9+.-]*:/", path) else os.path.abspath(path)


def read_records(spark: SparkSession, source: Source, selection: Selection) -> DataFrame:
    """Return the records of a selection as a batch, in schema.RECORD."""
    match source:
        case KafkaSource():
            reader = spark.read.format("kafka").options(**kafka_options(source, "batch"))
            if selection.from_offsets or selection.to_offsets:
                first, end = _kafka_bounds(source, selection)
                reader = reader.options(startingOffsets=first, endingOffsets=end)
            records, left = reader.load().transform(_from_kafka), selection.of_times
        case LogSource():
            options = _log_options(source, selection.from_offsets)
            options["ending"] = json.dumps(selection.to_offsets or {})
            records, left = (
                spark.read.format(embedded_log.FORMAT).options(**options).load(),
                selection.of_times,
            )
        case LakeSource():
            records, left = read_lake(spark, source).transform(from_archive), selection
        case _:
            raise UsageError(f"{source} is no source")
    return records.transform(within, left)


def stream_records(
    spark: SparkSession,
    source: Source,
    *,
    job: str,
    offsets_per_batch: int,
    selection: Selection = Selection(),
    starting: Offsets | None = None,
) -> DataFrame:
    """
    Return the records of a source as a stream, in schema.RECORD.

    Args:
        source: where the records are.
        job: its name is part of the consumer group on Kafka.
        offsets_per_batch: the largest batch on Kafka.
        selection: of times.
        starting: the first offsets of a stream without a checkpoint; a partition that is left out
            begins at its first offset.
    """
    match source:
        case KafkaSource():
            options = kafka_options(source, job) | {"maxOffsetsPerTrigger": str(offsets_per_batch)}
            options["startingOffsets"] = (
                "earliest" if starting is None else _kafka_bounds(source, Selection(from_offsets=starting))[0]
            )
            records = spark.readStream.format("kafka").options(**options).load().transform(_from_kafka)
        case LogSource():
            options = _log_options(source, starting)
            records = spark.readStream.format(embedded_log.FORMAT).options(**options).load()
        case LakeSource(format="parquet"):
            files = spark.readStream.schema(ARCHIVE).option("maxFilesPerTrigger", 16)
            records = _with_own_epochs(files.parquet(source.path))
        case LakeSource():
            reader = spark.readStream.format(source.format).options(**SKIPPED_CHANGES)
            stored = (
                reader.table(quoted_table(source.path))
                if is_table_name(source.path)
                else reader.load(source.path)
            )
            records = _with_own_epochs(stored)
        case _:
            raise UsageError(f"{source} is no source")
    return records.transform(within, selection)


def read_lake(spark: SparkSession, source: LakeSource) -> DataFrame:
    """Return an archive in schema.ARCHIVE, without columns that an older table lacks."""
    if is_table_name(source.path):
        rows = spark.read.table(quoted_table(source.path))
    else:
        reader = spark.read.format(source.format)
        rows = (reader.schema(ARCHIVE) if source.format == "parquet" else reader).load(source.path)
    return rows if source.log_epoch is None else rows.where(log_epoch_of(rows) == source.log_epoch)


def log_epoch_of(archive: DataFrame) -> Column:
    """Return the log that each row of an archive is of; 0 where nothing says so."""
    if LOG_EPOCH not in archive.columns:
        return F.lit(0).alias(LOG_EPOCH)
    return F.coalesce(F.col(LOG_EPOCH), F.lit(0)).alias(LOG_EPOCH)


def with_log_epoch(records: DataFrame, log_epoch: int) -> DataFrame:
    """Return records with a column log_epoch; those of an archive have their own."""
    return records if LOG_EPOCH in records.columns else records.withColumn(LOG_EPOCH, F.lit(log_epoch))


def _with_own_epochs(archive: DataFrame) -> DataFrame:
    return from_archive(archive.withColumn(LOG_EPOCH, log_epoch_of(archive)), LOG_EPOCH)


def from_archive(archive: DataFrame, *others: str) -> DataFrame:
    """Turn schema.ARCHIVE back into schema.RECORD and `others`; `gs` is null where that column is missing."""
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
        (F.col("gs") if has_progress else F.lit(None).cast("binary")).alias("gs"),
        *others,
    )


def within(records: DataFrame, selection: Selection) -> DataFrame:
    """Return the records of the selection."""
    conditions: list[Column] = []
    if selection.since:
        conditions.append(F.col("timestamp") >= F.lit(selection.since))
    if selection.until:
        conditions.append(F.col("timestamp") < F.lit(selection.until))
    for partition, first in (selection.from_offsets or {}).items():
        conditions.append((F.col("partition") != partition) | (F.col("offset") >= first))
    for partition, end in (selection.to_offsets or {}).items():
        conditions.append((F.col("partition") != partition) | (F.col("offset") < end))
    for condition in conditions:
        records = records.where(condition)
    return records


def _log_options(source: LogSource, starting: Offsets | None) -> dict[str, str]:
    return {"path": source.data_dir, "topic": source.topic, "starting": json.dumps(starting or {})}


def kafka_options(source: KafkaSource, job: str) -> dict[str, str]:
    """Return the options of Spark's connector; `job` is part of the consumer group. Raises UsageError."""
    return {
        **(source.login or KafkaSettings.read()).spark_options(),
        **KAFKA_OPTIONS,
        "kafka.bootstrap.servers": source.brokers,
        "subscribe": source.topic,
        "groupIdPrefix": f"gateway-spark-{job}",
        **dict(source.client_options),
    }


def _kafka_bounds(source: KafkaSource, selection: Selection) -> tuple[str, str]:
    """Return the options startingOffsets and endingOffsets, which must list every partition."""
    partitions = topic_positions(source.brokers, source.topic)
    first = {p: (selection.from_offsets or {}).get(p, EARLIEST) for p in partitions}
    end = {p: (selection.to_offsets or {}).get(p, LATEST) for p in partitions}
    return json.dumps({source.topic: first}), json.dumps({source.topic: end})


def _from_kafka(messages: DataFrame) -> DataFrame:
    is_test = F.array_contains(F.col("headers")["key"], HEADER_FENCE_TEST)
    return messages.where(~F.coalesce(is_test, F.lit(False))).select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        # Any producer may send other bytes than UTF-8, which Python could not decode.
        F.try_validate_utf8(header("source").cast("string")).alias("source"),
        header("gw").alias("gw"),
        header("gs").alias("gs"),
    )


def header(name: str) -> Column:
    """Return the header of this name; null unless there is exactly one."""
    # Without a lambda, for which Spark generates no code.
    names = F.col("headers")["key"]
    is_only = F.size(names) - F.size(F.array_remove(names, name)) == 1
    place = F.array_position(names, name).cast("int") - 1
    return F.when(is_only, F.get("headers", place)["value"])
