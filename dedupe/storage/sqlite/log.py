"""
The log in one SQLite file. It needs no server, and acknowledged records survive a power cut.

SqliteStore opens the file, SqliteLog is one partition. One thread commits the appends of all partitions
(writer); reads use short transactions (reading); other programs read the file by its schema (schema).
Two processes may open one file: the transaction of an append checks the partition's epoch.

Lane.submit -> admit -> **PartitionLog.append** -> DedupeIndex.apply
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import structlog

from dedupe.model.errors import ConfigurationError, NotAppendedError
from dedupe.model.record import (
    HEADER_DIALECT,
    HEADER_GATEWAY,
    HEADER_PROGRESS,
    HEADER_REASON,
    HEADER_SOURCE,
)
from dedupe.model.types import Headers, LogRecord, NewRecord, Offset
from dedupe.storage.fencing_appender import FencingAppender
from dedupe.storage.log import NOTE_BYTES_MAX, Crashpoint, DecidingLog, no_crashpoint
from dedupe.storage.sqlite.operations import Append, CreateTopic, Fence, KeepNote, Trim
from dedupe.storage.sqlite.reading import (
    BatchQuery,
    Readers,
    encode_headers,
    select_bounds,
    select_meta,
    select_newest_timestamp,
    select_offset_at,
    select_partitions,
)
from dedupe.storage.sqlite.schema import NOTHING, Row, SqliteLimits, open_or_create
from dedupe.storage.sqlite.writer import SqliteWriter

__all__ = ["SqliteLimits", "SqliteLog", "SqliteStore"]

FIRST_READ_RECORDS = 16
"""The first batch of a read is small, since recovery often needs one record; later batches grow."""

READ_GROWTH = 8

DEFAULT_LIMITS = SqliteLimits()


class SqliteStore:
    """All partitions of all topics in one file; used within one event loop."""

    def __init__(
        self,
        path: Path,
        log_id: str,
        writer: SqliteWriter | None,
        limits: SqliteLimits,
    ) -> None:
        self._path = path
        self._log_id = log_id
        self._writer = writer
        self._limits = limits
        self._readers = Readers(path, limits)
        self._first_ids: dict[str, list[int]] = {}

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        read_only: bool = False,
        limits: SqliteLimits = DEFAULT_LIMITS,
        crashpoint: Crashpoint = no_crashpoint,
    ) -> Self:
        """
        Open the file; create it unless `read_only`. Its folder must exist.

        Args:
            path: the file.
            read_only: whether to refuse every change.
            limits: queues, batches and waits.
            crashpoint: called in the writer thread, with "append" before and "commit" after each COMMIT of
                records.

        Raises:
            ConfigurationError: the file is no log, of a newer version, damaged, or cannot be opened. Final.
            RetriableError: another process locks the file, the disk fails, or the file is still empty.
        """
        log_id = await asyncio.to_thread(open_or_create, path, limits, read_only=read_only)
        writer = None if read_only else SqliteWriter(path, limits, crashpoint)
        store = cls(path, log_id, writer, limits)
        try:
            await store._load_partitions()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def log_id(self) -> str:
        return self._log_id

    async def create_topic(self, topic: str, partitions: int) -> None:
        """
        Create the topic with `partitions` >= 1, unless it exists.

        Raises:
            ConfigurationError: it exists with another number of partitions.
            RetriableError: it is unknown whether the topic was created; call again.
        """
        assert partitions >= 1
        await self._writable.do(CreateTopic(topic, partitions))
        await self._load_partitions()

    async def partitions_of(self, topic: str) -> int:
        await self._load_partitions()
        return len(self._first_ids.get(topic, ()))

    def partition_log(self, topic: str, partition: int) -> "SqliteLog":
        """Return one partition; `partitions_of` or `create_topic` must have read its topic before."""
        return SqliteLog(self._place(topic, partition), self._writer, self._readers, self._limits)

    def deciding_log(self, topic: str, partition: int) -> DecidingLog:
        """See LogStore; partitions of the embedded log stay as many as they are."""
        raise ConfigurationError("the embedded log has one process, and its partitions do not change")

    def appender(self, topic: str) -> FencingAppender:
        return FencingAppender(self.partition_log(topic, 0))

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        start = _note_key(name, topic)
        rows = await self._readers.run(lambda connection: select_meta(connection, start))
        return {int(key.removeprefix(start)): text for key, text in rows}

    async def note(self, name: str, topic: str, partition: int, text: str, *, once: bool = False) -> None:
        """See LogStore. Waits up to SqliteLimits.busy_timeout_s while another process commits."""
        assert len(text.encode()) <= NOTE_BYTES_MAX
        place = self._place(topic, partition)
        await self._writable.do(KeepNote(f"{_note_key(name, topic)}{place.partition}", text, once))

    async def newest_timestamp_ms(self) -> int | None:
        """Return the newest timestamp of all topics, None without records. Raises RetriableError."""
        return await self._readers.run(select_newest_timestamp)

    async def trim(self, topic: str, before_ms: int, records_max: int) -> int:
        """
        Delete records with a timestamp before `before_ms`, oldest first, in small transactions.

        The newest record of each partition stays, since it has the last lane_seq. The file does not shrink;
        SQLite reuses the free pages.

        Args:
            topic: the topic to trim.
            before_ms: in milliseconds since 1970.
            records_max: the limit of each partition.

        Returns:
            The number of deleted records.

        Raises:
            RetriableError: some records may have been deleted, others not.
        """
        deleted = 0
        for first_id in self._first_ids.get(topic, ()):
            left = records_max
            while left > 0:
                step = min(left, self._limits.trim_records_max)
                done = await self._writable.do(Trim(first_id, before_ms, step))
                deleted += done
                left -= done
                if done < step:
                    break
        return deleted

    async def close(self) -> None:
        """See LogStore. Commits queued operations. Idempotent."""
        self._readers.close()
        if self._writer is not None:
            await self._writer.close()

    def _place(self, topic: str, partition: int) -> "_Place":
        first_ids = self._first_ids.get(topic, ())
        if not 0 <= partition < len(first_ids):
            raise ConfigurationError(f"{self._path} has no partition {partition} of topic {topic}")
        return _Place(topic, partition, first_ids[partition])

    @property
    def _writable(self) -> SqliteWriter:
        return _required(self._writer)

    async def _load_partitions(self) -> None:
        rows = await self._readers.run(select_partitions)
        first_ids: dict[str, list[int]] = {}
        for topic, first_id in rows:
            first_ids.setdefault(topic, []).append(first_id)
        self._first_ids = first_ids


class _Place(NamedTuple):
    """One partition, and the id of its first record."""

    topic: str
    partition: int
    first_id: int


class SqliteLog:
    """One partition of a SqliteStore."""

    pause_after_append_s = 0.0  # while one group is committed, the next one gathers
    throttled_s = 0.0
    leader = "file"

    def __init__(
        self, place: _Place, writer: SqliteWriter | None, readers: Readers, limits: SqliteLimits
    ) -> None:
        self._place = place
        self._writer = writer
        self._readers = readers
        self._limits = limits
        self._epoch: int | None = None
        self._logger = structlog.get_logger(__name__).bind(topic=place.topic, partition=place.partition)

    async def fence(self) -> Offset:
        """See PartitionLog. Appends that were queued before the fence are committed before it."""
        self._epoch = None
        fenced = await _required(self._writer).do(Fence(self._place.first_id))
        self._epoch = fenced.epoch
        return fenced.next_offset

    async def bounds(self) -> tuple[Offset, Offset]:
        first_id = self._place.first_id
        return await self._readers.run(lambda connection: select_bounds(connection, first_id))

    async def offset_at(self, timestamp_ms: int) -> Offset:
        """See PartitionLog. Exact, since timestamps do not decrease. May raise LogCorruptError."""
        first_id = self._place.first_id
        return await self._readers.run(
            lambda connection: select_offset_at(connection, first_id, timestamp_ms)
        )

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        """See PartitionLog. Raises LogCorruptError if records are missing or the file is damaged."""
        position = start
        left = sys.maxsize if records_max is None else records_max
        batch_max = min(FIRST_READ_RECORDS, self._limits.read_records_max)
        while position < end and left > 0:
            count = min(batch_max, left)
            query = BatchQuery(self._place.first_id, position, end, count, self._limits.read_bytes_max)
            log_start, records = await self._readers.run(query.run)
            if position < log_start:
                self._logger.warning("reading from the log start", requested=position, log_start=log_start)
            if not records:
                return
            yield records
            position = records[-1].offset + 1
            left -= len(records)
            batch_max = min(READ_GROWTH * batch_max, self._limits.read_records_max)

    async def record_at(self, offset: Offset) -> LogRecord | None:
        query = BatchQuery(self._place.first_id, offset, offset + 1, 1, self._limits.read_bytes_max)
        _, records = await self._readers.run(query.run)
        return records[0] if records else None

    async def has_same_topic(self) -> bool:
        """See PartitionLog; True, as the file is this process's alone."""
        return True

    async def probe(self) -> None:
        """See PartitionLog; there is no network."""

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        """See PartitionLog. The records have the headers of record format v1."""
        # After any error, a cancellation included, the next append needs a fence.
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            raise NotAppendedError("the partition was not fenced after the writer's last error")
        rows = [_row_of(record) for record in records]
        size_bytes = sum(len(record.key) + len(record.value) for record in records)
        append = Append(self._place.first_id, epoch, rows, size_bytes)
        base = await _required(self._writer).do(append)
        self._epoch = epoch
        return base

    async def close(self) -> None:
        """See PartitionLog. Idempotent; an append in progress may still be committed."""
        self._epoch = None


def _note_key(name: str, topic: str) -> str:
    """Return the prefix of the keys in `meta` of a topic's notes; the partition number follows."""
    return f"note/{name}/{topic}/"


def _row_of(record: NewRecord) -> Row:
    """Return a record as the columns of the table."""
    (source_name, source), (gateway_name, gateway), *more = record.headers
    assert (source_name, gateway_name) == (HEADER_SOURCE, HEADER_GATEWAY), record.headers
    reason: str | int = NOTHING
    progress: bytes | int = NOTHING
    others: Headers = []
    for name, value in more:
        if name == HEADER_REASON:
            reason = value.decode()
        elif name == HEADER_PROGRESS:
            progress = value
        elif name != HEADER_DIALECT:  # gw tells it, too
            others.append((name, value))
    stored = encode_headers(others) if others else NOTHING
    return record.timestamp_ms, source.decode(), reason, record.key, gateway, record.value, progress, stored


def _required(writer: SqliteWriter | None) -> SqliteWriter:
    if writer is None:
        raise ConfigurationError("the SQLite log was opened read-only")
    return writer
