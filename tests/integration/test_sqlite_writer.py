"""
Claim: the embedded log's writer syncs every commit, takes errors of the disk for what they are, and
outlives whatever is raised in its thread: everybody who waits is answered.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog

from dedupe.model.errors import NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.storage.sqlite.log import SqliteLimits, SqliteLog, SqliteStore
from dedupe.storage.sqlite.operations import Change
from dedupe.storage.sqlite.schema import translated
from dedupe.storage.sqlite.writer import Transaction
from tests.integration.test_sqlite_log import (
    IMPATIENT,
    TOPIC,
    fenced,
    files_no_larger_than,
    numbers,
    read_all,
    record,
    records,
)

PROMPT_S = 5.0
"""Much less than SqliteLimits.answer_timeout_s, after which nobody waits anyway."""


@dataclass(frozen=True, slots=True)
class Ask(Change):
    """Run a statement on the writer's own connection."""

    statement: str

    def run(self, transaction: Transaction) -> Any:
        return transaction.execute(self.statement)


class Failing:
    """A crash point that raises an error at a step, once."""

    def __init__(self) -> None:
        self.step = ""
        self.error: BaseException = AssertionError("not set")

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.step = ""
            raise self.error


class World:
    """A log whose writer can be asked and made to fail."""

    def __init__(self, store: SqliteStore, failing: Failing) -> None:
        self.store = store
        self._failing = failing

    async def ask(self, statement: str) -> Any:
        return await self.store._writable.do(Ask(statement))

    @property
    def connection(self) -> sqlite3.Connection | None:
        return self.store._writable._connection

    def fail(self, step: str, error: BaseException) -> None:
        self._failing.error = error
        self._failing.step = step


@pytest.fixture
def failing_report(request: pytest.FixtureRequest) -> Iterator[None]:
    """Raise the test's error whenever something is reported; to be used before `world`."""

    def fail(_logger: object, _method: str, _event: object) -> NoReturn:
        raise request.param

    structlog.configure(processors=[fail])
    yield
    structlog.reset_defaults()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def world(path: Path) -> AsyncIterator[World]:
    failing = Failing()
    store = await SqliteStore.open(path, limits=IMPATIENT, crashpoint=failing)
    await store.create_topic(TOPIC, 2)
    yield World(store, failing)
    await store.close()


async def assert_serves(log: SqliteLog, expected: int) -> None:
    """The partition holds so many records, and takes one more."""
    assert await log.fence() == expected
    assert await log.append(records(expected, 1)) == expected
    assert numbers(await read_all(log)) == list(range(expected + 1))


async def test_writer_syncs_every_commit(world: World) -> None:
    await world.ask("SELECT 1")

    assert world.connection is not None
    assert world.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert world.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("cause", "error"),
    [("PRAGMA max_page_count = 1", "full"), ("PRAGMA query_only = ON", "readonly")],
)
async def test_disk_that_takes_nothing_leaves_nothing_and_is_tried_anew(
    world: World, cause: str, error: str
) -> None:
    log = await fenced(world.store)
    await log.append(records(0, 3))
    await world.ask(cause)

    with pytest.raises(NotAppendedError, match=error):
        await log.append([record(3, value=bytes(100_000))])

    await assert_serves(log, 3)


@pytest.mark.regression("Groups of more than 2,048 events failed on some builds of SQLite.")
async def test_group_of_any_size_is_within_the_limits_of_every_sqlite(world: World) -> None:
    """Debian's takes 250,000 parameters in a statement, SQLite's own default is 32,766."""
    log = await fenced(world.store)

    assert await log.append(records(0, 4_096)) == 0
    assert len(await read_all(log)) == 4_096


async def test_failed_sync_is_final_for_the_connection(world: World) -> None:
    log = await fenced(world.store)
    await log.append(records(0, 3))
    failed = world.connection
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    world.fail("append", error)

    with pytest.raises(OutcomeUnknownError):
        await log.append(records(3, 1))

    assert world.connection is None
    await assert_serves(log, 3)
    assert world.connection is not failed


async def test_failed_checkpoint_is_final_for_the_connection_and_loses_nothing(path: Path) -> None:
    store = await SqliteStore.open(path, limits=SqliteLimits(wal_checkpoint_bytes=50_000))
    await store.create_topic(TOPIC, 1)
    log = await fenced(store)
    values = [record(number, value=bytes(2_000)) for number in range(360)]
    for first in range(0, 320, 40):
        await log.append(values[first : first + 40])
    await store.notes("any", TOPIC)
    writer = store._writable
    await writer.do(Ask("SELECT 1"))
    failed = writer._connection

    with files_no_larger_than(path.stat().st_size):
        await log.append(values[320:])
        await writer.do(Ask("SELECT 1"))

    assert failed is not writer._connection
    await assert_serves(log, 360)
    await store.close()


@pytest.mark.parametrize(
    "code",
    [
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR_READ,  # EIO
        sqlite3.SQLITE_IOERR_WRITE,  # EDQUOT, EROFS
        sqlite3.SQLITE_IOERR_NOMEM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
    ],
)
def test_disk_that_fails_a_read_says_nothing_about_the_log(code: int) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code

    assert isinstance(translated(error), RetriableError)


async def test_reader_without_memory_may_be_tried_again(world: World) -> None:
    def query(_connection: sqlite3.Connection) -> None:
        raise MemoryError  # what Python's sqlite3 makes of SQLITE_NOMEM

    with pytest.raises(RetriableError):
        await world.store._readers.run(query)


@pytest.mark.regression("An error in the writer's thread left requests waiting for ever.")
@pytest.mark.parametrize("error", [SystemExit(), asyncio.CancelledError(), MemoryError()])
@pytest.mark.parametrize(("step", "expected"), [("append", 3), ("commit", 4)])
async def test_whatever_is_raised_in_the_writer_its_operation_is_answered_and_the_next_one_done(
    world: World, step: str, expected: int, error: BaseException
) -> None:
    log = await fenced(world.store)
    await log.append(records(0, 3))
    world.fail(step, error)

    async with asyncio.timeout(PROMPT_S):
        with pytest.raises(OutcomeUnknownError):
            await log.append(records(3, 1))

    await assert_serves(log, expected)


@pytest.mark.parametrize("failing_report", [OSError(28, "No space left on device")], indirect=True)
@pytest.mark.usefixtures("failing_report")
async def test_report_that_cannot_be_written_keeps_nobody_waiting(world: World, path: Path) -> None:
    log = await fenced(world.store)
    async with asyncio.timeout(PROMPT_S):
        with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
            other_process.execute("BEGIN IMMEDIATE")
            with pytest.raises(NotAppendedError):
                await log.append(records(0, 1))
            other_process.execute("ROLLBACK")
        await log.fence()
        world.fail("append", sqlite3.OperationalError("disk I/O error"))
        with pytest.raises(OutcomeUnknownError):
            await log.append(records(0, 1))
    await assert_serves(log, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failing_report", [SystemExit()], indirect=True)
@pytest.mark.usefixtures("failing_report")
async def test_writer_that_has_ended_fails_operations_at_once(world: World) -> None:
    log = await fenced(world.store)
    world.fail("append", SystemExit())
    with pytest.raises(OutcomeUnknownError):
        await log.append(records(0, 1))
    await asyncio.to_thread(world.store._writable._thread.join, PROMPT_S)

    with pytest.raises(RetriableError, match="has ended"):
        await log.fence()
