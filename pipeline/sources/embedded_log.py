"""
The embedded SQLite log as a Spark source, batch and stream: format `gateway_log`.

Reads the file by its published schema (docs/ARCHITECTURE.md), read-only, in short transactions, on
the machine of a running gateway. It sees committed records only.

Spark's Python workers import this module for each query, so it imports no client of Kafka.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.errors import PipelineError
from pipeline.schema import RECORD

FORMAT = "gateway_log"
SCHEMA_VERSION_MAX = 1
ROWS_PER_BATCH = 5_000  # of about a kilobyte: one Arrow batch stays under 10 MB
ROWS_PER_TASK = 200_000  # a task of a second or two
BUSY_TIMEOUT_S = 5.0

_RANGE = """
SELECT id - :first_id, timestamp_ms, key, value, source, gw, {gs} FROM records
WHERE id >= :first_id + :start AND id < :first_id + :end ORDER BY id LIMIT :limit
"""

_AT = """
SELECT id - :first_id FROM records WHERE id >= :first_id AND id < :first_id + :end
AND timestamp_ms >= :moment_ms ORDER BY id LIMIT 1
"""

_ARROW = to_arrow_schema(RECORD)


@dataclass(frozen=True)
class LogRange(InputPartition):
    """Offsets [start, end) of one partition."""

    partition: int
    first_id: int
    start: int
    end: int


@dataclass(frozen=True)
class LogPartition:
    """One row of the log's table of partitions."""

    partition: int
    first_id: int
    log_start_offset: int
    next_offset: int


class GatewayLogSource(DataSource):
    """`spark.read.format("gateway_log").option("path", DATA_DIR).option("topic", ...)`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return RECORD

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(self.options)


class _RangeReader:
    """
    Reads ranges of a topic; its options are path, topic, and first and end offsets by partition.

    A partition without a first offset begins at the log's start.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._data_dir, self._topic = options["path"], options["topic"]
        self._starting: dict[str, int] = json.loads(options.get("starting", "{}"))
        self._ending: dict[str, int] = json.loads(options.get("ending", "{}"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the records of a range in offset order.

        Raises:
            PipelineError: retention has deleted some of them.
        """
        assert isinstance(partition, LogRange)
        position = partition.start
        with closing(_open(self._data_dir)) as log:
            # A gateway adds the column when it opens an older log.
            has_progress = any(row[1] == "gs" for row in log.execute("PRAGMA table_info(records)"))
            query = _RANGE.format(gs="gs" if has_progress else "NULL")
            bounds = {"first_id": partition.first_id, "end": partition.end, "limit": ROWS_PER_BATCH}
            while position < partition.end:
                rows = log.execute(query, bounds | {"start": position}).fetchall()
                if not rows or rows[0][0] != position:
                    raise PipelineError(
                        f"partition {partition.partition} no longer has offset {position}: "
                        "retention deleted it while it was read"
                    )
                position = rows[-1][0] + 1
                offsets, times_ms, *others = zip(*rows, strict=True)
                times_us = [ms * 1000 for ms in times_ms]
                place = ([self._topic] * len(rows), [partition.partition] * len(rows), offsets)
                columns = zip((*place, times_us, *others), _ARROW, strict=True)
                arrays = [pa.array(values, field.type) for values, field in columns]
                yield pa.record_batch(arrays, schema=_ARROW)

    def _partitions(self) -> dict[str, LogPartition]:
        return {str(part.partition): part for part in read_partitions(self._data_dir, self._topic)}


class LogReader(_RangeReader, DataSourceReader):
    """Reads everything between the bounds that is committed when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        ranges: list[InputPartition] = []
        for name, part in self._partitions().items():
            first = max(part.log_start_offset, self._starting.get(name, 0))
            ranges += _split(part, first, min(part.next_offset, self._ending.get(name, part.next_offset)))
        return ranges or [LogRange(0, 0, 0, 0)]  # Spark needs at least one


class LogStreamReader(_RangeReader, DataSourceStreamReader):
    """Reads a stream whose offsets are a map of partition to next offset."""

    def initialOffset(self) -> dict[str, int]:
        starts = {name: part.log_start_offset for name, part in self._partitions().items()}
        return starts | {name: first for name, first in self._starting.items() if name in starts}

    def latestOffset(self) -> dict[str, int]:
        return {name: part.next_offset for name, part in self._partitions().items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        ranges: list[InputPartition] = []
        for name, part in self._partitions().items():
            first = start.get(name, part.log_start_offset)
            if first < part.log_start_offset < end.get(name, first):
                raise PipelineError(
                    f"partition {name} of the log begins at {part.log_start_offset}, and this job has read "
                    f"only up to {first}: retention deleted records it had not seen"
                )
            ranges += _split(part, first, end.get(name, first))
        return ranges


def read_partitions(data_dir: str, topic: str) -> list[LogPartition]:
    """
    Return the partitions of a topic, in order.

    Raises:
        PipelineError: there is no log, it is of a newer version, or it has no such topic.
    """
    with closing(_open(data_dir)) as log:
        version = int(log.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()[0])
        if version > SCHEMA_VERSION_MAX:
            raise PipelineError(f"the log in {data_dir} has version {version}: use newer jobs")
        rows = log.execute(
            "SELECT partition, first_id, log_start_offset, next_offset FROM partitions"
            " WHERE topic = ? ORDER BY partition",
            (topic,),
        ).fetchall()
    if not rows:
        raise PipelineError(f"the log in {data_dir} has no topic {topic!r}")
    return [LogPartition(*row) for row in rows]


def read_log_id(data_dir: str) -> str:
    """Return the id of the log. Raises PipelineError: there is no log."""
    with closing(_open(data_dir)) as log:
        return str(log.execute("SELECT value FROM meta WHERE key = 'log_id'").fetchone()[0])


def offsets_at(data_dir: str, topic: str, moment: datetime) -> dict[int, int]:
    """Return the first offset of each partition that is as new as a moment; one without it is left out."""
    moment_ms, offsets = int(moment.timestamp() * 1000), {}
    for part in read_partitions(data_dir, topic):
        with closing(_open(data_dir)) as log:
            bounds = {"first_id": part.first_id, "end": part.next_offset, "moment_ms": moment_ms}
            if row := log.execute(_AT, bounds).fetchone():
                offsets[part.partition] = row[0]
    return offsets


def _split(part: LogPartition, start: int, end: int) -> list[InputPartition]:
    return [
        LogRange(part.partition, part.first_id, first, min(first + ROWS_PER_TASK, end))
        for first in range(start, end, ROWS_PER_TASK)
    ]


def _open(data_dir: str) -> sqlite3.Connection:
    path = Path(data_dir).absolute() / "log.sqlite"
    try:
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
    except sqlite3.OperationalError as err:
        raise PipelineError(f"there is no embedded log at {path}: {err}") from err
