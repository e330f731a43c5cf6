"""
The one thread of a process that changes the SQLite log: it commits what waits as one transaction.

It decides what shares a transaction and what every operation in it is told, and must not guess: an
error before the COMMIT left nothing; an error of the COMMIT leaves the outcome unknown to all. After
any error the connection is closed: a file that failed to reach the disk once must not be believed.

Each call of SQLite gives up Python's global lock and has to win it back from a busy event loop,
which can take 5 ms. So a group makes few calls, and all its records go in as one INSERT: row by
row, a busy loop slows the thread down to some hundred records/s.
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
"""The largest INSERT: a whole group in two at most, of 16,384 parameters each, within PARAMETERS_MAX."""


@dataclass(slots=True)
class PartitionState:
    """A partition's row, as the operations of a transaction change it one after another."""

    epoch: int
    next_offset: Offset
    log_start_offset: Offset


class Transaction:
    """An open transaction: the rows of all partitions, and the records that are still to go in."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read the partitions as one row, since each row would be a call of its own."""
        self._connection = connection
        (rows,) = connection.execute(
            "SELECT json_group_array(json_array(first_id, epoch, next_offset, log_start_offset)) "
            "FROM partitions"
        ).fetchone()
        self._partitions = {first_id: PartitionState(*state) for first_id, *state in orjson.loads(rows)}
        self._changed: set[int] = set()
        self._rows: list[Sequence[object]] = []

    def partition(self, first_id: int) -> PartitionState:
        """Return a partition's row, to look at."""
        return self._partitions[first_id]

    def partition_to_change(self, first_id: int) -> PartitionState:
        """Return a partition's row, to change it in place."""
        self._changed.add(first_id)
        return self._partitions[first_id]

    def put(self, first_id: int, rows: Sequence[Row]) -> None:
        """Insert records with consecutive ids, at the latest before the COMMIT."""
        self._rows += [(record_id, *row) for record_id, row in enumerate(rows, first_id)]

    def execute(self, statement: str, *parameters: object) -> Any:
        """Run a statement after all changes so far; return its first row or None."""
        self.flush()
        return self._connection.execute(statement, parameters).fetchone()

    def flush(self) -> None:
        """Write everything changed and put so far, in as few statements as SQLite's limits allow."""
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
        Run a statement that takes many rows; it skips those of NOTHING.

        It is made for a power of two, so that a dozen statements serve all sizes and stay compiled.
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
        """What to raise if the operation definitely changed nothing."""

    @property
    def unknown(self) -> type[RetriableError]:
        """What to raise if it may or may not have happened."""

    @property
    def records(self) -> int:
        """How many records it inserts."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes they have."""

    def run(self, transaction: Transaction) -> T_co:
        """
        Change the log within the group's transaction.

        Raises:
            GatewayError: for this operation alone, which has changed nothing.
            sqlite3.Error: the whole group is rolled back and tried one by one.
        """


class Job(NamedTuple):
    """An operation that waits, and who waits for it."""

    operation: Operation[object]
    answer: "asyncio.Future[Any]"


class SqliteWriter:
    """Owns the thread and its connection; `do` is called in the event loop that made it."""

    def __init__(self, path: Path, limits: SqliteLimits, crashpoint: Crashpoint) -> None:
        """Start the thread; it opens the file with the first operation, and again after each failure."""
        self._path = path
        self._limits = limits
        self._crashpoint = crashpoint
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting = 0
        self._is_closed = False
        self._is_stopping = False
        self._taken: list[Job] = []  # from the queue, and not answered yet
        self._connection: sqlite3.Connection | None = None
        self._bytes_since_checkpoint = 0
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._logger = structlog.get_logger(__name__).bind(path=str(path))
        self._thread.start()

    # ---- in the event loop

    async def do(self, operation: Operation[T]) -> T:
        """
        Run the operation and return its result once it is durable.

        Cancelling it cancels only the waiting.

        Raises:
            RetriableError: `operation.undone` or `operation.unknown`.
            GatewayError: what the operation itself raises.
        """
        if self._is_closed:
            raise operation.undone("the SQLite log is closed")
        if not self._thread.is_alive():
            raise operation.undone("the SQLite log's writer has ended: restart the gateway")
        if self._waiting >= self._limits.queue_operations_max:
            raise operation.undone("the SQLite log has too much to do")
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
        """Commit what waits and end the thread. Idempotent, bounded in time."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, self._limits.close_timeout_s)
        if self._thread.is_alive():
            self._logger.error("the SQLite log could not be closed in time: does the disk hang?")

    def _end_waiting(self, job: Job) -> None:
        if not job.answer.done():
            seconds = self._limits.answer_timeout_s
            job.answer.set_exception(job.operation.unknown(f"no answer from the disk within {seconds:.0f} s"))

    def _deliver(self, jobs: Sequence[Job], outcomes: Sequence[object]) -> None:
        self._waiting -= len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.answer.done():
                continue  # the waiter has left
            if isinstance(outcome, GatewayError):
                job.answer.set_exception(outcome)
            else:
                job.answer.set_result(outcome)

    # ---- in the thread

    def _run(self) -> None:
        """Work until closed. The thread serves all lanes and outlives every error."""
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
        """Wait for an operation and take it with all others that wait, in order, within the limits."""
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
        """Answer everything taken after an unexpected error, and begin anew."""
        self._disconnect()
        jobs = list(self._taken)
        self._reply(jobs, [job.operation.unknown(f"the SQLite log's writer failed: {err!r}") for job in jobs])
        with suppress(Exception):
            self._logger.critical("the writer failed and goes on", operations=len(jobs), error=repr(err))

    def _process(self, jobs: Sequence[Job]) -> None:
        """Commit the jobs as one transaction, or one by one if one of them cannot be done."""
        # Answers first: an error of the report must not keep them back.
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
        """Do everything but the COMMIT; return each job's result, or the error that is its alone."""
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
        """Answer the jobs, which are those taken first."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, jobs, outcomes)
            del self._taken[: len(jobs)]
        except RuntimeError:
            self._taken.clear()
            self._logger.warning("the event loop ended before its operations", operations=len(jobs))

    def _checkpoint_if_due(self) -> None:
        """Copy the WAL into the database after enough bytes, so that it starts again from its beginning."""
        if self._connection is None or self._bytes_since_checkpoint < self._limits.wal_checkpoint_bytes:
            return
        self._bytes_since_checkpoint = 0
        try:
            _, wal_pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if wal_pages * PAGE_BYTES > self._limits.wal_bytes_max:
                self._restart_wal(self._connection, wal_pages * PAGE_BYTES)
        except (sqlite3.Error, MemoryError) as err:
            self._disconnect()
            self._logger.error("checkpoint failed, it is tried again later", error=repr(err))

    def _restart_wal(self, connection: sqlite3.Connection, wal_bytes: int) -> None:
        """
        Hold appends until no reader uses the WAL, but not for long.

        Short reads overlap without end, and each keeps the WAL from starting again.
        """
        connection.execute(f"PRAGMA busy_timeout = {self._limits.wal_restart_wait_s * 1000:.0f}")
        try:
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self._limits.busy_timeout_s * 1000:.0f}")
        if is_busy:
            self._logger.warning(
                "the WAL cannot start again: a reader's transaction is open", bytes=wal_bytes
            )

    def _disconnect(self) -> None:
        """Close the connection, which rolls an open transaction back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.rollback()
            with suppress(Exception):
                connection.close()


def _is_busy(err: Exception) -> bool:
    """Whether another process holds the log: each further try would wait as long again."""
    return getattr(err, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


@cache
def _insert_statement(size: int) -> str:
    columns = f"column1, column2, column3, nullif(column4, {NOTHING}), column5, column6, column7"
    return (
        "INSERT INTO records(id, timestamp_ms, source, reason, key, gw, value, gs) "
        f"SELECT {columns}, nullif(column8, {NOTHING}) FROM ({_values(size, 8)}) WHERE column1 <> {NOTHING}"
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
