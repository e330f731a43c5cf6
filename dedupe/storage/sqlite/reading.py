"""
Reads of the SQLite log, in short transactions in worker threads.

While a reader's transaction is open, the WAL cannot be reset, and grows.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

import orjson

from dedupe.model.errors import LogCorruptError
from dedupe.model.record import (
    CLOUDEVENT_HEADERS,
    FLAG_CLOUDEVENT,
    HEADER_GATEWAY,
    HEADER_PROGRESS,
    HEADER_REASON,
    HEADER_SOURCE,
)
from dedupe.model.types import Headers, LogRecord, Offset
from dedupe.storage.sqlite.schema import SqliteLimits, connect, translated

T = TypeVar("T")


class Readers:
    """A pool of read-only connections for worker threads."""

    def __init__(self, path: Path, limits: SqliteLimits) -> None:
        self._path = path
        self._limits = limits
        self._lock = Lock()
        self._idle: list[sqlite3.Connection] = []
        self._is_closed = False

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """
        Run a query in one transaction in a worker thread.

        Raises:
            RetriableError: the file cannot be read now.
            LogCorruptError: it is damaged.
        """
        return await asyncio.to_thread(self._run, query)

    def close(self) -> None:
        """Close idle connections now, others after their query. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._take()
            try:
                connection.execute("BEGIN")
                result = query(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, MemoryError) as err:
            raise translated(err) from err
        self._give_back(connection)
        return result

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return connect(self._path, self._limits, read_only=True)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()


class BatchQuery(NamedTuple):
    """One batch of a read, within one transaction."""

    first_id: int
    start: Offset
    end: Offset
    records_max: int
    bytes_max: int

    def run(self, connection: sqlite3.Connection) -> tuple[Offset, list[LogRecord]]:
        """
        Return the log start, and the first records of [start, end), at least one if there is one.

        Raises:
            LogCorruptError: a record is missing.
        """
        log_start, next_offset = select_bounds(connection, self.first_id)
        start, end = max(self.start, log_start), min(self.end, next_offset)
        records: list[LogRecord] = []
        size_bytes = 0
        rows = connection.execute(
            "SELECT id - ?1, timestamp_ms, key, value, source, gw, reason, gs, headers FROM records "
            "WHERE id >= ?1 + ?2 AND id < ?1 + ?3 ORDER BY id LIMIT ?4",
            (self.first_id, start, end, self.records_max),
        )
        for offset, timestamp_ms, key, value, source, gateway, reason, progress, others in rows:
            headers = _headers_of(source, gateway, reason, progress)
            if others is not None:
                headers += decode_headers(others)
            records.append(LogRecord(offset, timestamp_ms, key, value, headers))
            size_bytes += len(value)
            if size_bytes >= self.bytes_max:
                break
        rows.close()
        if start < end and (not records or records[-1].offset != start + len(records) - 1):
            raise LogCorruptError(f"the SQLite log lacks records at or after offset {start + len(records)}")
        return log_start, records


def select_bounds(connection: sqlite3.Connection, first_id: int) -> tuple[Offset, Offset]:
    log_start, next_offset = connection.execute(
        "SELECT log_start_offset, next_offset FROM partitions WHERE first_id = ?", (first_id,)
    ).fetchone()
    return log_start, next_offset


def select_offset_at(connection: sqlite3.Connection, first_id: int, timestamp_ms: int) -> Offset:
    """Return the first offset with this timestamp or a later one, by binary search."""
    low, high = select_bounds(connection, first_id)
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            "SELECT timestamp_ms FROM records WHERE id = ?", (first_id + middle,)
        ).fetchone()
        if row is None:
            raise LogCorruptError(f"the SQLite log lacks the record at offset {middle}")
        if row[0] < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    return low


def select_newest_timestamp(connection: sqlite3.Connection) -> int | None:
    newest_ms: int | None
    (newest_ms,) = connection.execute(
        "SELECT max(timestamp_ms) FROM partitions JOIN records ON id = first_id + next_offset - 1"
    ).fetchone()
    return newest_ms


def select_meta(connection: sqlite3.Connection, start: str) -> list[tuple[str, str]]:
    """Return the rows whose key starts with `start`; the table has a few dozen rows."""
    return connection.execute(
        "SELECT key, value FROM meta WHERE substr(key, 1, length(?1)) = ?1", (start,)
    ).fetchall()


def select_partitions(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    return connection.execute("SELECT topic, first_id FROM partitions ORDER BY topic, partition").fetchall()


def encode_headers(headers: Headers) -> bytes:
    """Encode headers as a JSON array of name and value, whose bytes are the characters below 256."""
    return orjson.dumps([(name, value.decode("latin-1")) for name, value in headers])


def decode_headers(text: bytes) -> Headers:
    """Decode what `encode_headers` has encoded."""
    return [(name, value.encode("latin-1")) for name, value in orjson.loads(text)]


def _headers_of(source: str, gateway: bytes, reason: str | None, progress: bytes | None) -> Headers:
    headers = [(HEADER_SOURCE, source.encode()), (HEADER_GATEWAY, gateway)]
    if progress is not None:
        headers.append((HEADER_PROGRESS, progress))
    if reason is not None:
        headers.append((HEADER_REASON, reason.encode()))
    if gateway[1] & FLAG_CLOUDEVENT:
        headers += CLOUDEVENT_HEADERS
    return headers
