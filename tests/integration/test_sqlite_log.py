"""
Claim: the embedded log commits groups whole, blames failures on nobody else, survives SIGKILL and a
full disk, keeps its WAL small, and can be read and written by two processes at once.
"""

import asyncio
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dedupe.model.errors import (
    ConfigurationError,
    FencedError,
    LogCorruptError,
    NotAppendedError,
    OutcomeUnknownError,
    RetriableError,
)
from dedupe.model.types import LogRecord, NewRecord
from dedupe.storage.sqlite import schema as sqlite_schema
from dedupe.storage.sqlite.log import SqliteLimits, SqliteLog, SqliteStore
from dedupe.storage.sqlite.schema import PAGE_BYTES, SCHEMA_VERSION
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
TOPIC = "events"
PARTITIONS = 8

IMPATIENT = SqliteLimits(busy_timeout_s=0.05)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    await store.create_topic(TOPIC, PARTITIONS)
    yield store
    await store.close()


def record(number: int, *, value: bytes = b"{}", key: bytes | None = None) -> NewRecord:
    """Return a record whose timestamp is its number."""
    headers = [("source", b"web"), ("gw", number.to_bytes(8, "big"))]
    return NewRecord(number, b"id-%d" % number if key is None else key, value, headers)


def records(first: int, count: int) -> list[NewRecord]:
    """Return records `first`, `first` + 1, ..."""
    return [record(number) for number in range(first, first + count)]


def numbers(found: Sequence[LogRecord]) -> list[int]:
    """Return which records these are."""
    return [found_record.timestamp_ms for found_record in found]


async def fenced(store: SqliteStore, partition: int = 0) -> SqliteLog:
    """Return the partition's newest writer."""
    log = store.partition_log(TOPIC, partition)
    await log.fence()
    return log


async def read_batches(log: SqliteLog) -> list[Sequence[LogRecord]]:
    """Return everything the partition holds, in the batches that it came in."""
    async with aclosing(log.read(*await log.bounds())) as batches:
        return [batch async for batch in batches]


async def read_all(log: SqliteLog) -> list[LogRecord]:
    """Return everything the partition holds."""
    return [found for batch in await read_batches(log) for found in batch]


def wal_bytes(path: Path) -> int:
    """Return the size of the WAL."""
    return path.with_name(path.name + "-wal").stat().st_size


class Gate:
    """A crash point that counts the groups, and can hold the writer thread before a COMMIT."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.commits = 0
        self._reached = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def __call__(self, step: str) -> None:
        if step == "commit":
            self.commits += 1
            return
        self._reached.set()
        assert self._open.wait(20)

    async def hold(self, append: "asyncio.Future[int]") -> None:
        """Wait until this append's group is about to commit; the next ones queue up behind it."""
        assert await asyncio.to_thread(self._reached.wait, 20), append

    def close(self) -> None:
        """Hold the next group."""
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        """Let groups pass."""
        self._open.set()


@pytest.fixture
async def gated(path: Path) -> AsyncIterator[tuple[SqliteStore, Gate]]:
    gate = Gate()
    store = await SqliteStore.open(path, crashpoint=gate)
    await store.create_topic(TOPIC, PARTITIONS)
    yield store, gate
    gate.open()
    await store.close()


async def append_as_one_group(
    gate: Gate, first: SqliteLog, others: Sequence[SqliteLog], values: Sequence[Sequence[NewRecord]]
) -> list[int | BaseException]:
    """Append to `first` alone, and to all others in one group behind it; return the others' outcomes."""
    gate.close()
    leader = asyncio.ensure_future(first.append([record(0)]))
    await gate.hold(leader)
    appends = [asyncio.ensure_future(log.append(value)) for log, value in zip(others, values, strict=True)]
    await asyncio.sleep(0)
    gate.open()
    await leader
    return await asyncio.gather(*appends, return_exceptions=True)


# ---- groups


async def test_appends_that_wait_share_one_commit(gated: tuple[SqliteStore, Gate]) -> None:
    store, gate = gated
    first, *others = [await fenced(store, partition) for partition in range(PARTITIONS)]

    bases = await append_as_one_group(gate, first, others, [records(0, 50)] * len(others))

    assert bases == [0] * len(others)
    assert gate.commits == 2
    for log in others:
        assert numbers(await read_all(log)) == list(range(50))


async def test_stale_writer_in_a_group_is_fenced_alone(gated: tuple[SqliteStore, Gate]) -> None:
    store, gate = gated
    first, *others = [await fenced(store, partition) for partition in range(PARTITIONS)]
    await fenced(store, 3)

    outcomes = await append_as_one_group(gate, first, others, [records(0, 5)] * len(others))

    assert gate.commits == 2
    assert isinstance(outcomes.pop(2), FencedError)
    assert outcomes == [0] * 6
    lengths = [len(await read_all(store.partition_log(TOPIC, partition))) for partition in range(PARTITIONS)]
    assert lengths == [1, 5, 5, 0, 5, 5, 5, 5]


async def test_append_that_sqlite_refuses_fails_alone(gated: tuple[SqliteStore, Gate], path: Path) -> None:
    store, gate = gated
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON records WHEN NEW.key = x'FF' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    first, *others = [await fenced(store, partition) for partition in range(PARTITIONS)]
    values = [records(0, 5) for _ in others]
    values[4] = [record(0), record(1, key=b"\xff")]

    outcomes = await append_as_one_group(gate, first, others, values)

    assert isinstance(outcomes.pop(4), NotAppendedError)
    assert outcomes == [0] * 6
    assert await read_all(others[4]) == []
    assert await others[4].fence() == 0
    assert await others[4].append([record(7)]) == 0


async def test_fence_in_the_group_of_its_zombie_comes_after_it(gated: tuple[SqliteStore, Gate]) -> None:
    store, gate = gated
    blocker, zombie = await fenced(store, 1), await fenced(store, 0)
    gate.close()
    leader = asyncio.ensure_future(blocker.append([record(0)]))
    await gate.hold(leader)
    before = asyncio.ensure_future(zombie.append(records(0, 3)))
    await asyncio.sleep(0)
    fence = asyncio.ensure_future(store.partition_log(TOPIC, 0).fence())
    await asyncio.sleep(0)
    gate.open()

    assert await before == 0
    assert await fence == 3
    with pytest.raises(FencedError):
        await zombie.append(records(3, 1))
    await leader


async def test_cancelled_waiter_leaves_its_group_alone(gated: tuple[SqliteStore, Gate]) -> None:
    store, gate = gated
    first, cancelled, other = [await fenced(store, partition) for partition in range(3)]
    gate.close()
    leader = asyncio.ensure_future(first.append([record(0)]))
    await gate.hold(leader)
    gone = asyncio.ensure_future(cancelled.append(records(0, 3)))
    stays = asyncio.ensure_future(other.append(records(0, 4)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    gate.open()

    assert await stays == 0
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await cancelled.fence() in (0, 3)
    await leader


async def test_append_larger_than_one_statement_is_read_back(store: SqliteStore) -> None:
    log = await fenced(store)

    assert await log.append(records(0, 10_001)) == 0
    assert await log.append(records(10_001, 1)) == 10_001

    assert numbers(await read_all(log)) == list(range(10_002))


async def test_more_operations_than_the_queue_takes_are_refused(path: Path) -> None:
    gate = Gate()
    limits = SqliteLimits(queue_operations_max=2)
    store = await SqliteStore.open(path, limits=limits, crashpoint=gate)
    await store.create_topic(TOPIC, PARTITIONS)
    logs = [await fenced(store, partition) for partition in range(3)]
    gate.close()
    first = asyncio.ensure_future(logs[0].append([record(0)]))
    await gate.hold(first)
    second = asyncio.ensure_future(logs[1].append([record(0)]))
    await asyncio.sleep(0)

    with pytest.raises(NotAppendedError):
        await logs[2].append([record(0)])
    with pytest.raises(RetriableError):
        await logs[2].fence()

    gate.open()
    assert (await first, await second) == (0, 0)
    assert await logs[2].fence() == 0
    await store.close()


# ---- disks that fail


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """Let every write beyond this size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_failing_commit_leaves_the_whole_group_unknown_and_the_log_recovers(
    gated: tuple[SqliteStore, Gate], path: Path
) -> None:
    store, gate = gated
    first, *others = [await fenced(store, partition) for partition in range(PARTITIONS)]
    await first.append([record(0, value=bytes(4 * 1024 * 1024))])
    gate.close()
    leader = asyncio.ensure_future(first.append([record(1)]))
    await gate.hold(leader)
    appends = [asyncio.ensure_future(log.append(records(0, 5))) for log in others]
    await asyncio.sleep(0)

    with files_no_larger_than(wal_bytes(path)):
        gate.open()
        outcomes = await asyncio.gather(leader, *appends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * PARTITIONS
        with pytest.raises(RetriableError):
            await first.fence()

    assert await first.fence() == 1
    assert await first.append([record(1)]) == 1
    for log in others:
        assert await log.fence() == 0
        assert await log.append(records(0, 5)) == 0
        assert numbers(await read_all(log)) == [0, 1, 2, 3, 4]


async def test_disk_that_hangs_leaves_the_outcome_unknown_and_loses_nothing(path: Path) -> None:
    gate = Gate()
    limits = SqliteLimits(answer_timeout_s=0.2)
    store = await SqliteStore.open(path, limits=limits, crashpoint=gate)
    await store.create_topic(TOPIC, PARTITIONS)
    log = await fenced(store)
    gate.close()

    with pytest.raises(OutcomeUnknownError):
        await log.append(records(0, 3))
    with pytest.raises(RetriableError):
        await log.fence()

    gate.open()
    assert await log.fence() == 3
    assert numbers(await read_all(log)) == [0, 1, 2]
    await store.close()


async def test_busy_log_is_not_appended_to_and_recovers(path: Path, store: SqliteStore) -> None:
    impatient = await SqliteStore.open(path, limits=IMPATIENT)
    log = await fenced(impatient)
    with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotAppendedError):
            await log.append(records(0, 1))
        with pytest.raises(RetriableError):
            await log.fence()
        other_process.execute("ROLLBACK")

    assert await log.fence() == 0
    assert await log.append(records(0, 1)) == 0
    await impatient.close()


# ---- processes that die, and several at once

KILLED_WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.integration.test_sqlite_log import TOPIC, SqliteStore, fenced, records

async def main(path, step):
    hits = iter([False, True])
    def crashpoint(name):
        if name == step and next(hits):
            os.kill(os.getpid(), signal.SIGKILL)
    store = await SqliteStore.open(path, crashpoint=crashpoint)
    log = await fenced(store)
    await log.append(records(0, 10))
    await log.append(records(10, 600))

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""

FOLLOWING_READER = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_sqlite_log import TOPIC, SqliteStore, aclosing

async def main(path, count):
    store = await SqliteStore.open(path, read_only=True)
    log = store.partition_log(TOPIC, 0)
    position = 0
    while position < count:
        _, end = await log.bounds()
        if end == position:
            continue
        async with aclosing(log.read(position, end)) as found:
            async for records in found:
                assert [r.offset for r in records] == list(range(position, position + len(records)))
                assert [r.timestamp_ms for r in records] == [r.offset for r in records]
                position += len(records)
        assert position == end
        print(position, flush=True)
    await store.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""

COMPETING_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_sqlite_log import SqliteStore, fenced, records

async def main(path, partition):
    store = await SqliteStore.open(path)
    log = await fenced(store, partition)
    for number in range(200):
        await log.append(records(number, 1))
    await store.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


def python(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a process of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("step", "expected"), [("append", 10), ("commit", 610)])
async def test_process_killed_around_the_commit_leaves_nothing_or_everything(
    store: SqliteStore, path: Path, step: str, expected: int
) -> None:
    await store.close()
    with python(KILLED_WRITER, path, step) as killed:
        assert await asyncio.to_thread(killed.wait, PATIENCE_S) == -signal.SIGKILL

    reopened = await SqliteStore.open(path)
    log = reopened.partition_log(TOPIC, 0)
    assert await log.bounds() == (0, expected)
    assert numbers(await read_all(log)) == list(range(expected))
    assert await log.fence() == expected
    assert await log.append(records(expected, 1)) == expected
    await reopened.close()


async def test_reader_in_another_process_follows_the_writer(store: SqliteStore, path: Path) -> None:
    log = await fenced(store)
    with python(FOLLOWING_READER, path, 3_000) as reader:
        assert reader.stdout is not None
        await log.append(records(0, 100))
        await asyncio.to_thread(reader.stdout.readline)
        for first in range(100, 3_000, 100):
            await log.append(records(first, 100))
            await asyncio.sleep(0.002)
        assert await asyncio.to_thread(reader.wait, PATIENCE_S) == 0


async def test_two_processes_append_side_by_side(store: SqliteStore, path: Path) -> None:
    with python(COMPETING_WRITER, path, 1) as other:
        log = await fenced(store)
        for number in range(200):
            await log.append(records(number, 1))
        assert await asyncio.to_thread(other.wait, PATIENCE_S) == 0

    assert numbers(await read_all(log)) == list(range(200))
    assert numbers(await read_all(store.partition_log(TOPIC, 1))) == list(range(200))


# ---- reading


async def test_read_batches_start_small_and_stay_within_the_limits(path: Path) -> None:
    limits = SqliteLimits(read_records_max=100, read_bytes_max=10_000)
    store = await SqliteStore.open(path, limits=limits)
    await store.create_topic(TOPIC, 2)
    small, large = await fenced(store, 0), await fenced(store, 1)
    await small.append(records(0, 400))
    await large.append([record(number, value=bytes(4_000)) for number in range(7)])

    assert [len(batch) for batch in await read_batches(small)] == [16, 100, 100, 100, 84]
    assert [len(batch) for batch in await read_batches(large)] == [3, 3, 1]
    await store.close()


async def test_read_of_a_few_records_fetches_no_more(store: SqliteStore) -> None:
    log = await fenced(store)
    await log.append(records(0, 1_000))

    async with aclosing(log.read(5, 1_000, records_max=20)) as batches:
        assert [numbers(batch) async for batch in batches] == [list(range(5, 21)), list(range(21, 25))]


async def test_offset_at_is_that_of_the_first_record_as_new(store: SqliteStore) -> None:
    log = await fenced(store)
    assert await log.offset_at(0) == 0
    await log.append(records(0, 300))
    await log.append([record(500), record(500), record(500), record(700)])
    await store.trim(TOPIC, 100, 10_000)

    found = [await log.offset_at(at_ms) for at_ms in (0, 100, 101, 299, 300, 500, 501, 700, 701)]

    assert found == [100, 100, 101, 299, 300, 300, 303, 303, 304]


async def test_offset_at_of_a_missing_record_is_reported_as_corruption(
    store: SqliteStore, path: Path
) -> None:
    log = await fenced(store)
    await log.append(records(0, 10))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM records WHERE id = 5")

    with pytest.raises(LogCorruptError):
        await log.offset_at(9)


async def test_newest_timestamp_is_that_of_all_topics(store: SqliteStore) -> None:
    await store.create_topic("other", 1)
    assert await store.newest_timestamp_ms() is None
    await (await fenced(store, 3)).append(records(0, 5))
    other = store.partition_log("other", 0)
    await other.fence()
    await other.append([record(17)])
    await (await fenced(store, 7)).append(records(3, 9))

    assert await store.newest_timestamp_ms() == 17


async def test_missing_record_is_reported_as_corruption(store: SqliteStore, path: Path) -> None:
    log = await fenced(store)
    await log.append(records(0, 10))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM records WHERE id = 4")

    with pytest.raises(LogCorruptError):
        await read_all(log)


async def test_damaged_file_is_reported_as_corruption(store: SqliteStore, path: Path) -> None:
    log = await fenced(store)
    await log.append([record(number, value=bytes(2_000)) for number in range(200)])
    await store.close()
    damaged = bytearray(path.read_bytes())
    for page in range(20 * 4096, len(damaged), 4096):
        damaged[page : page + 100] = b"\xff" * 100
    path.write_bytes(damaged)

    reopened = await SqliteStore.open(path)
    with pytest.raises(LogCorruptError):
        await read_all(reopened.partition_log(TOPIC, 0))
    await reopened.close()


async def test_header_of_no_record_format_is_refused(store: SqliteStore) -> None:
    log = await fenced(store)

    with pytest.raises(AssertionError):
        await log.append([NewRecord(0, b"", b"", [("gw", b""), ("source", b"")])])


# ---- notes

NOTE_TAKER = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_sqlite_log import TOPIC, SqliteStore

async def main(path):
    store = await SqliteStore.open(path)
    for number in range(30):
        await store.note("skip", TOPIC, 3, f"note {number}")
    await store.close()

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_note_is_found_by_whoever_opens_the_log(store: SqliteStore, path: Path) -> None:
    await store.note("skip", TOPIC, 3, "first")
    await store.note("skip", TOPIC, 3, "second")
    await store.note("skip", TOPIC, 0, "ü" * 2_000)
    await store.note("skipped", TOPIC, 3, "of another name")
    reader = await SqliteStore.open(path, read_only=True)

    assert await reader.notes("skip", TOPIC) == {3: "second", 0: "ü" * 2_000}
    assert await reader.notes("skip", "unknown") == {}
    with pytest.raises(ConfigurationError):
        await reader.note("skip", TOPIC, 3, "read-only")
    with pytest.raises(ConfigurationError):
        await store.note("skip", TOPIC, PARTITIONS, "of no partition")
    await reader.close()


async def test_another_process_keeps_notes_while_this_one_appends(store: SqliteStore, path: Path) -> None:
    log = await fenced(store)
    with python(NOTE_TAKER, path) as other:
        count = 0
        while other.poll() is None:
            await log.append(records(count, 100))
            count += 100
        assert other.returncode == 0

    assert await store.notes("skip", TOPIC) == {3: "note 29"}
    assert await log.bounds() == (0, count)


# ---- trimming


async def test_trim_deletes_old_records_and_moves_the_log_start(store: SqliteStore) -> None:
    log = await fenced(store)
    await log.append(records(0, 2_000))

    assert await store.trim(TOPIC, 1_500, 10_000) == 1_500

    assert await log.bounds() == (1_500, 2_000)
    assert numbers(await read_all(log)) == list(range(1_500, 2_000))


async def test_trim_never_deletes_the_newest_record(store: SqliteStore) -> None:
    log, empty = await fenced(store, 0), await fenced(store, 1)
    await log.append(records(0, 3))

    assert await store.trim(TOPIC, 1_000, 10_000) == 2
    assert await store.trim(TOPIC, 1_000, 10_000) == 0

    assert await log.bounds() == (2, 3)
    assert await empty.bounds() == (0, 0)
    assert await log.append(records(3, 1)) == 3


async def test_trim_stops_at_its_limit_in_each_partition(store: SqliteStore) -> None:
    for partition in (0, 5):
        log = await fenced(store, partition)
        await log.append(records(0, 1_000))

    assert await store.trim(TOPIC, 5_000, 700) == 1_400

    assert await store.partition_log(TOPIC, 5).bounds() == (700, 1_000)


async def test_trim_leaves_other_topics_alone(store: SqliteStore) -> None:
    await store.create_topic("other", 1)
    log = store.partition_log("other", 0)
    await log.fence()
    await log.append(records(0, 10))

    assert await store.trim(TOPIC, 1_000, 1_000) == 0
    assert await store.trim("unknown", 1_000, 1_000) == 0
    assert await log.bounds() == (0, 10)


async def test_trim_and_appends_and_reads_at_once_keep_the_log_whole(store: SqliteStore) -> None:
    log = await fenced(store)
    is_done = False

    async def append() -> None:
        nonlocal is_done
        for first in range(0, 6_000, 60):
            await log.append(records(first, 60))
        is_done = True

    async def trim() -> None:
        while not is_done:
            _, end = await log.bounds()
            await store.trim(TOPIC, end - 200, 1_000)

    async def read() -> None:
        while not is_done:
            found = await read_all(log)
            assert [found_record.offset for found_record in found] == numbers(found)

    with capture_logs():
        await asyncio.gather(append(), trim(), read())

    start, end = await log.bounds()
    assert (start > 0, end) == (True, 6_000)
    assert numbers(await read_all(log)) == list(range(start, 6_000))


async def test_trimmed_room_is_used_again(store: SqliteStore, path: Path) -> None:
    log = await fenced(store)
    sizes = []
    for first in range(0, 8_000, 1_000):
        await log.append([record(number, value=bytes(1_000)) for number in range(first, first + 1_000)])
        await store.trim(TOPIC, first - 500, 10_000)
        with closing(sqlite3.connect(path)) as connection:
            sizes.append(connection.execute("PRAGMA page_count").fetchone()[0])

    assert sizes[-1] <= sizes[3] * 1.1


# ---- the WAL

SMALL_WAL = SqliteLimits(wal_checkpoint_bytes=200_000, wal_bytes_max=1_000_000, wal_restart_wait_s=0.05)


def _begin_reading(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM partitions").fetchone()


async def test_wal_stays_small_under_reads_that_overlap_without_end(path: Path) -> None:
    store = await SqliteStore.open(path, limits=SMALL_WAL)
    await store.create_topic(TOPIC, 1)
    log = await fenced(store)
    is_done = False
    appended = asyncio.Event()

    async def read() -> None:
        """Begin each transaction before the last one ends, which has seen less than is in the WAL by then."""
        connections = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
        for current, last in cycle([connections, connections[::-1]]):
            _begin_reading(current)
            if last.in_transaction:
                last.execute("COMMIT")
            if is_done:
                break
            appended.clear()
            with suppress(TimeoutError):  # an append may itself be waiting for the readers
                async with asyncio.timeout(SMALL_WAL.wal_restart_wait_s / 5):
                    await appended.wait()
        for connection in connections:
            connection.close()

    reading = asyncio.ensure_future(read())
    for first in range(0, 4_000, 40):
        await log.append([record(number, value=bytes(2_000)) for number in range(first, first + 40)])
        appended.set()
    is_done = True
    await reading

    assert wal_bytes(path) < 4 * SMALL_WAL.wal_bytes_max
    await store.close()


async def test_reader_that_keeps_its_transaction_is_reported_and_does_not_stop_the_writer(path: Path) -> None:
    store = await SqliteStore.open(path, limits=SMALL_WAL)
    await store.create_topic(TOPIC, 1)
    log = await fenced(store)
    await log.append([record(0)])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
        with capture_logs() as reports:
            for first in range(1, 1_001, 40):
                await log.append([record(number, value=bytes(2_000)) for number in range(first, first + 40)])
        assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)

    assert {report["log_level"] for report in reports} == {"warning"}
    for number in range(1_001, 1_201):
        await log.append([record(number, value=bytes(2_000))])
    assert wal_bytes(path) <= 4 * SMALL_WAL.wal_checkpoint_bytes + 100_000
    assert len(await read_all(log)) == 1_201
    await store.close()


async def test_clean_close_leaves_one_file(store: SqliteStore, path: Path) -> None:
    log = await fenced(store)
    await log.append(records(0, 10))
    await read_all(log)

    await store.close()

    assert [file.name for file in path.parent.iterdir()] == [path.name]


# ---- the file


async def test_log_id_is_made_with_the_file(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    again = await SqliteStore.open(path)
    other = await SqliteStore.open(tmp_path / "other.sqlite")

    assert again.log_id == store.log_id != other.log_id
    await again.close()
    await other.close()


async def test_processes_that_create_the_file_together_agree(path: Path) -> None:
    patient = SqliteLimits(busy_timeout_s=60.0)  # a slow disk makes six of them wait for one another
    stores = await asyncio.gather(*(SqliteStore.open(path, limits=patient) for _ in range(6)))

    assert len({store.log_id for store in stores}) == 1
    for store in stores:
        await store.close()


@pytest.mark.regression("Several processes that opened the embedded log at once failed.")
async def test_opening_waits_for_who_writes_without_wal(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as writer:
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetriableError, match="in use by another process"):
            await SqliteStore.open(path, limits=SqliteLimits(busy_timeout_s=0))

        monkeypatch.setattr(sqlite_schema, "sleep", lambda _: writer.execute("COMMIT"))
        again = await SqliteStore.open(path, limits=SqliteLimits(busy_timeout_s=60))
    await again.close()


async def test_topic_keeps_its_partition_count(store: SqliteStore) -> None:
    await store.create_topic(TOPIC, PARTITIONS)

    with pytest.raises(ConfigurationError, match="8 partitions"):
        await store.create_topic(TOPIC, PARTITIONS + 1)

    assert await store.partitions_of(TOPIC) == PARTITIONS


async def test_partition_that_does_not_exist_is_refused(store: SqliteStore) -> None:
    for topic, partition in ((TOPIC, PARTITIONS), (TOPIC, -1), ("unknown", 0)):
        with pytest.raises(ConfigurationError):
            store.partition_log(topic, partition)


async def test_newer_schema_is_refused_in_one_sentence(store: SqliteStore, path: Path) -> None:
    await store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION + 1),)
        )

    for read_only in (False, True):
        with pytest.raises(ConfigurationError, match=r"^[^.]*log\.sqlite has log schema version 2[^.]*$"):
            await SqliteStore.open(path, read_only=read_only)


@pytest.mark.parametrize("content", ["text", "database"])
async def test_file_of_something_else_is_refused_and_left_alone(path: Path, content: str) -> None:
    if content == "text":
        path.write_text("not a database, but long enough to look at " * 50)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE someone_elses(a)")
    before = path.read_bytes()

    with pytest.raises(ConfigurationError, match="is not an event log"):
        await SqliteStore.open(path)

    assert path.read_bytes() == before


@pytest.mark.regression("A log file put back without its write-ahead log was tried for ever.")
@pytest.mark.parametrize("page", ["partitions", "sqlite_autoindex_partitions_1"])
@pytest.mark.parametrize("content", ["older", "zeroed"])
async def test_file_without_its_write_ahead_log_is_called_damaged_and_left_alone(
    path: Path, page: str, content: str
) -> None:
    await (await SqliteStore.open(path)).close()  # as a checkpoint leaves it that copied some pages only
    older = path.read_bytes()
    store = await SqliteStore.open(path)
    await store.create_topic(TOPIC, PARTITIONS)
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (page,)).fetchone()
    damaged = bytearray(path.read_bytes())
    place = slice((root - 1) * PAGE_BYTES, root * PAGE_BYTES)
    damaged[place] = older[place] if content == "older" else bytes(PAGE_BYTES)
    path.write_bytes(damaged)

    for read_only in (False, True):
        with pytest.raises(ConfigurationError, match=r"is damaged: .* log\.sqlite-wal belongs beside it"):
            await SqliteStore.open(path, read_only=read_only)

    assert path.read_bytes() == damaged


async def test_file_that_cannot_be_opened_is_a_configuration_error(path: Path) -> None:
    with pytest.raises(ConfigurationError):
        await SqliteStore.open(path, read_only=True)
    with pytest.raises(ConfigurationError):
        await SqliteStore.open(path.parent / "missing" / "log.sqlite")
    assert not path.exists()


async def test_read_only_open_of_an_empty_file_may_be_tried_again(path: Path) -> None:
    path.touch()

    with pytest.raises(RetriableError):
        await SqliteStore.open(path, read_only=True)


async def test_read_only_store_reads_without_a_writer_and_changes_nothing(
    store: SqliteStore, path: Path
) -> None:
    log = await fenced(store)
    await log.append(records(0, 5))
    await store.close()

    reader = await SqliteStore.open(path, read_only=True)
    read_log = reader.partition_log(TOPIC, 0)
    assert numbers(await read_all(read_log)) == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigurationError):
        await read_log.fence()
    with pytest.raises(ConfigurationError):
        await reader.create_topic("more", 1)
    await reader.close()


async def test_schema_is_what_other_readers_were_promised(store: SqliteStore, path: Path) -> None:
    log = await fenced(store, 3)
    quarantined = NewRecord(17, b"id", b"{}", [("source", b"web"), ("gw", b"\x01"), ("reason", b"conflict")])
    await log.append([record(16), quarantined])

    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        assert meta == {"schema_version": "1", "log_id": store.log_id}
        partition = connection.execute(
            "SELECT first_id, epoch, next_offset, log_start_offset FROM partitions "
            "WHERE topic = ? AND partition = 3",
            (TOPIC,),
        ).fetchone()
        assert partition == (3 << 48, 1, 2, 0)
        rows = connection.execute(
            "SELECT id - :first_id, timestamp_ms, key, value, source, gw, reason FROM records "
            "WHERE id >= :first_id + :start AND id < :first_id + :end ORDER BY id LIMIT 1000",
            {"first_id": 3 << 48, "start": 0, "end": 2},
        ).fetchall()
    assert rows == [
        (0, 16, b"id-16", b"{}", "web", (16).to_bytes(8, "big"), None),
        (1, 17, b"id", b"{}", "web", b"\x01", "conflict"),
    ]


async def test_loop_goes_on_while_the_disk_works(store: SqliteStore, path: Path) -> None:
    patient = await SqliteStore.open(path, limits=SqliteLimits(busy_timeout_s=60))
    log = await fenced(patient)
    with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")  # the disk is busy until the loop has gone on
        appending = asyncio.ensure_future(log.append(records(0, 1_000)))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not appending.done()
        other_process.execute("ROLLBACK")
    assert await appending == 0
    await patient.close()
