"""
The only thread of a process that changes the SQLite log: it commits queued operations as one transaction.

An error before the COMMIT means that nothing was committed; after an error of the COMMIT, the outcome of
all its operations is unknown. Any error closes the connection: after a failed fsync, SQLite's page cache
may differ from the disk.

Each call of SQLite releases Python's global lock, and a busy event loop returns it only after up to 5 ms. So
a group makes few calls: one INSERT has all its records.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson
import structlog

from dedupe.model.errors import GatewayError, RetriableError
from dedupe.model.types import Offset
from dedupe.storage.log import Crashpoint
from dedupe.storage.sqlite.schema import NOTHING, PAGE_BYTES, Row, SqliteLimits, connect

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

STATEMENT_ROWS_MAX = 2048
"""The rows of the largest INSERT: 18,432 parameters, within PARAMETERS_MAX; two of them hold a group."""


@dataclass(slots=True)
class PartitionState:
    """A partition's row, which the operations of a transaction change."""

    epoch: int
    next_offset: Offset
    log_start_offset: Offset


class Transaction:
    """An open transaction: the rows of all partitions, and the records that are not inserted yet."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read all partitions as one row, since each row costs a call."""
        self._connection = connection
        (rows,) = connection.execute(
            "SELECT json_group_array(json_array(first_id, epoch, next_offset, log_start_offset)) "
            "FROM partitions"
        ).fetchone()
        self._partitions = {first_id: PartitionState(*state) for first_id, *state in orjson.loads(rows)}
        self._changed: set[int] = set()
        self._rows: list[Sequence[object]] = []

    def partition(self, first_id: int) -> PartitionState:
        """Return a partition's row, for reading only."""
        return self._partitions[first_id]

    def partition_to_change(self, first_id: int) -> PartitionState:
        """Return a partition's row, for changes in place."""
        self._changed.add(first_id)
        return self._partitions[first_id]

    def put(self, first_id: int, rows: Sequence[Row]) -> None:
        """Insert records with consecutive ids at the next flush."""
        self._rows += [(record_id, *row) for record_id, row in enumerate(rows, first_id)]

    def execute(self, statement: str, *parameters: object) -> Any:
        """Flush, run a statement, and return its first row or None."""
        self.flush()
        return self._connection.execute(statement, parameters).fetchone()

    def flush(self) -> None:
        """Write all changes and records so far, in as few statements as SQLite's limits allow."""
        changed = [(first_id, self._partitions[first_id]) for first_id in self._changed]
        states = [
            (first_id, state.epoch, state.next_offset, state.log_start_offset) for first_id, state in changed
        ]
        self._execute_all(_update_statement, states)
        self._execute_all(_insert_statement, self._rows)
        self._changed.clear()
        self._rows.clear()

    def _execute_all(self, statement: Callable[[int], str], rows: Sequence[Sequence[object]]) -> None:
        """
        Run a statement for many rows.

        Rows of NOTHING fill up to a power of two, so that a dozen compiled statements serve all sizes.
        """
        for start in range(0, len(rows), STATEMENT_ROWS_MAX):
            part = rows[start : start + STATEMENT_ROWS_MAX]
            size = 1 << (len(part) - 1).bit_length()
            padding = (NOTHING,) * (len(rows[0]) * (size - len(part)))
            self._connection.execute(statement(size), [*chain.from_iterable(part), *padding])


class Operation(Protocol[T_co]):
    """One change of the log, and its errors."""

    @property
    def undone(self) -> type[RetriableError]:
        """The error that means: the operation changed nothing."""

    @property
    def unknown(self) -> type[RetriableError]:
        """The error that means: the outcome is unknown."""

    @property
    def records(self) -> int:
        """The number of records that it inserts."""

    @property
    def size_bytes(self) -> int:
        """Their approximate size."""

    def run(self, transaction: Transaction) -> T_co:
        """
        Change the log within the group's transaction.

        Raises:
            GatewayError: this operation alone has changed nothing.
            sqlite3.Error: the writer rolls the group back, and repeats its operations one by one.
        """


class Job(NamedTuple):
    """A queued operation, and the future of its result."""

    operation: Operation[object]
    answer: "asyncio.Future[Any]"


class SqliteWriter:
    """The thread and its connection; `do` is called in the event loop that created it."""

    def __init__(self, path: Path, limits: SqliteLimits, crashpoint: Crashpoint) -> None:
        """Start the thread, which opens the file at the first operation, and again after each error."""
        self._path = path
        self._limits = limits
        self._crashpoint = crashpoint
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting = 0
        self._is_closed = False
        self._is_stopping = False
        self._taken: list[Job] = []  # removed from the queue, not answered yet
        self._connection: sqlite3.Connection | None = None
        self._bytes_since_checkpoint = 0
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._logger = structlog.get_logger(__name__).bind(path=str(path))
        self._thread.start()

    # ---- in the event loop

    async def do(self, operation: Operation[T]) -> T:
        """
        Run the operation, and return its result once that is durable.

        Cancellation ends the wait, not the operation.

        Raises:
            RetriableError: `operation.undone` or `operation.unknown`.
            GatewayError: an error of the operation.
        """
        if self._is_closed:
            raise operation.undone("the SQLite log is closed")
        if not self._thread.is_alive():
            raise operation.undone("the SQLite log's writer thread has ended: restart the gateway")
        if self._waiting >= self._limits.queue_operations_max:
            raise operation.undone("the queue of the SQLite log's writer is full")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._waiting += 1
        job = Job(operation, answer)
        self._queue.put(job)
        alarm = self._loop.call_later(self._limits.answer_timeout_s, self._end_waiting, job)
        try:
            return await answer
        finally:
            alarm.cancel()

    async def close(self) -> None:
        """Commit queued operations and end the thread. Idempotent, bounded in time."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, self._limits.close_timeout_s)
        if self._thread.is_alive():
            self._logger.error("the SQLite log was not closed in time: the disk may hang")

    def _end_waiting(self, job: Job) -> None:
        if not job.answer.done():
            seconds = self._limits.answer_timeout_s
            job.answer.set_exception(job.operation.unknown(f"no answer from the disk within {seconds:.0f} s"))

    def _deliver(self, jobs: Sequence[Job], outcomes: Sequence[object]) -> None:
        self._waiting -= len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.answer.done():
                continue  # the caller was cancelled, or timed out
            if isinstance(outcome, GatewayError):
                job.answer.set_exception(outcome)
            else:
                job.answer.set_result(outcome)

    # ---- in the thread

    def _run(self) -> None:
        """Process groups until closed. No error ends the thread, since it serves all lanes."""
        while not self._is_stopping:
            try:
                self._take_group()
                if self._taken:
                    self._process(list(self._taken))
                    self._checkpoint_if_due()
            except BaseException as err:
                self._abandon(err)
        self._disconnect()

    def _take_group(self) -> None:
        """Wait for an operation, and dequeue it and those behind it, within the limits."""
        records = size_bytes = 0
        job = self._queue.get()
        while job is not None:
            self._taken.append(job)
            records += job.operation.records
            size_bytes += job.operation.size_bytes
            if records >= self._limits.group_records_max or size_bytes >= self._limits.group_bytes_max:
                return
            try:
                job = self._queue.get_nowait()
            except Empty:
                return
        self._is_stopping = True

    def _abandon(self, err: BaseException) -> None:
        """Answer all dequeued operations after an unexpected error."""
        self._disconnect()
        jobs = list(self._taken)
        self._reply(jobs, [job.operation.unknown(f"the SQLite log's writer failed: {err!r}") for job in jobs])
        with suppress(Exception):
            self._logger.critical("the writer failed, and continues", operations=len(jobs), error=repr(err))

    def _process(self, jobs: Sequence[Job]) -> None:
        """Commit the jobs as one transaction, or one by one if that fails."""
        # Answer before logging: an error of the log line must not delay answers.
        try:
            outcomes = self._prepare(jobs)
        except Exception as err:
            self._disconnect()
            if len(jobs) > 1 and not _is_busy(err):
                for job in jobs:
                    self._process([job])
            else:
                self._reply(jobs, [job.operation.undone(f"nothing was committed: {err}") for job in jobs])
            self._logger.error("transaction failed", operations=len(jobs), error=repr(err))
            return
        try:
            self._commit(is_append=any(job.operation.records for job in jobs))
        except Exception as err:
            self._disconnect()
            self._reply(jobs, [job.operation.unknown(f"the commit failed: {err}") for job in jobs])
            self._logger.error("commit failed, outcome unknown", operations=len(jobs), error=repr(err))
        else:
            self._bytes_since_checkpoint += sum(job.operation.size_bytes for job in jobs) + 2 * PAGE_BYTES
            self._reply(jobs, outcomes)

    def _prepare(self, jobs: Sequence[Job]) -> list[object]:
        """Run the jobs without the COMMIT; return each job's result or its own error."""
        if self._connection is None:
            self._connection = connect(self._path, self._limits, read_only=False)
        self._connection.execute("BEGIN IMMEDIATE")
        transaction = Transaction(self._connection)
        outcomes: list[object] = []
        for job in jobs:
            try:
                outcomes.append(job.operation.run(transaction))
            except GatewayError as err:
                outcomes.append(err)
        transaction.flush()
        return outcomes

    def _commit(self, *, is_append: bool) -> None:
        assert self._connection is not None
        if is_append:
            self._crashpoint("append")
        self._connection.execute("COMMIT")
        if is_append:
            self._crashpoint("commit")

    def _reply(self, jobs: Sequence[Job], outcomes: Sequence[object]) -> None:
        """Answer these jobs, the first of those dequeued."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, jobs, outcomes)
            del self._taken[: len(jobs)]
        except RuntimeError:
            self._taken.clear()
            self._logger.warning("the event loop ended before these operations", operations=len(jobs))

    def _checkpoint_if_due(self) -> None:
        """Checkpoint the WAL after wal_checkpoint_bytes, so that SQLite resets it."""
        if self._connection is None or self._bytes_since_checkpoint < self._limits.wal_checkpoint_bytes:
            return
        self._bytes_since_checkpoint = 0
        try:
            _, wal_pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if wal_pages * PAGE_BYTES > self._limits.wal_bytes_max:
                self._restart_wal(self._connection, wal_pages * PAGE_BYTES)
        except (sqlite3.Error, MemoryError) as err:
            self._disconnect()
            self._logger.error("checkpoint failed, to be repeated later", error=repr(err))

    def _restart_wal(self, connection: sqlite3.Connection, wal_bytes: int) -> None:
        """
        Block appends for a short time, until no reader uses the WAL.

        Reads that overlap would otherwise prevent its reset.
        """
        connection.execute(f"PRAGMA busy_timeout = {self._limits.wal_restart_wait_s * 1000:.0f}")
        try:
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self._limits.busy_timeout_s * 1000:.0f}")
        if is_busy:
            self._logger.warning("the WAL cannot be reset: a reader's transaction is open", bytes=wal_bytes)

    def _disconnect(self) -> None:
        """Close the connection, and roll back an open transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.rollback()
            with suppress(Exception):
                connection.close()


def _is_busy(err: Exception) -> bool:
    """Whether another process locks the file: a second attempt would wait as long again."""
    return getattr(err, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


@cache
def _insert_statement(size: int) -> str:
    columns = f"column1, column2, column3, nullif(column4, {NOTHING}), column5, column6, column7"
    return (
        "INSERT INTO records(id, timestamp_ms, source, reason, key, gw, value, gs, headers) "
        f"SELECT {columns}, nullif(column8, {NOTHING}), nullif(column9, {NOTHING}) "
        f"FROM ({_values(size, 9)}) WHERE column1 <> {NOTHING}"
    )


@cache
def _update_statement(size: int) -> str:
    return (
        "UPDATE partitions SET epoch = column2, next_offset = column3, log_start_offset = column4 "
        f"FROM ({_values(size, 4)}) WHERE first_id = column1"
    )


def _values(rows: int, columns: int) -> str:
    row = "(" + ",".join("?" * columns) + ")"
    return "VALUES " + ",".join([row] * rows)
