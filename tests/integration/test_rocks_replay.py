"""
A long write-ahead log is replayed by another process, and closing waits for nobody.

Whoever holds the event loop up for long is seen by the size of what is left to replay, never by a
clock.
"""

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import CoroutineType

import pytest

from dedupe.model.errors import IndexCorruptError, IndexUnavailableError
from dedupe.storage.index import EMPTY_STATE, Opening
from dedupe.storage.rocksdb.database import tuning_for
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.replay import WAL_BYTES_MAX, replay
from dedupe.storage.rocksdb.store import CLOSERS, LANE_BYTES_MIN, RocksStore
from dedupe.storage.rocksdb.wal import wal_files
from tests.contract.index_contract import IDENTITY, KEYS_MAX, entry_of, key_of, update_of
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
LONG = 48_000
"""So many entries are a log of more than WAL_BYTES_MAX; they fit into the memtables."""
BATCH = 1_000
LANE_BYTES = 16 * LANE_BYTES_MIN


def store_in(root: Path) -> RocksStore:
    return RocksStore(root, lanes=1, memory_bytes=LANE_BYTES, keys_max=KEYS_MAX)


def path_in(root: Path) -> Path:
    return root / IDENTITY.topic / str(IDENTITY.partition)


def fill(index: RocksIndex, end: int) -> None:
    for first in range(0, end, BATCH):
        index.apply(update_of(first, BATCH))


def assert_is_whole(index: RocksIndex, end: int) -> None:
    assert index.state.applied_offset == end
    assert index.lookup([key_of(i) for i in range(end)]) == [entry_of(i) for i in range(end)]


def assert_opens_whole(root: Path) -> None:
    index = store_in(root).open(IDENTITY)
    assert_is_whole(index, LONG)
    index.close()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the root of an index with a long log, as a killed process leaves it."""
    before, root = tmp_path / "before", tmp_path / "killed"
    index = store_in(before).open(IDENTITY)
    fill(index, LONG)
    shutil.copytree(before, root)
    index.close()
    assert wal_files(path_in(root)).size_bytes > WAL_BYTES_MAX
    return root


def run_with(program: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, root],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def awaited_by(coroutine: object) -> list[str]:
    """Return the names of the coroutines that a coroutine awaits, outermost first."""
    names = []
    while isinstance(coroutine, CoroutineType):
        names.append(coroutine.cr_code.co_name)
        coroutine = coroutine.cr_await
    return names


def children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended; its children are another's now
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


# ---- replaying


@pytest.mark.regression("Opening an index with a long write-ahead log stopped the whole process.")
async def test_long_log_is_replayed_before_the_index_is_opened(killed: Path) -> None:
    store = store_in(killed)

    await store.prepare(IDENTITY)

    assert wal_files(path_in(killed)).size_bytes == 0
    index = store.open(IDENTITY)
    assert_is_whole(index, LONG)
    index.close()


async def test_long_log_that_is_replayed_says_how_far_it_is(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupe.storage.rocksdb.replay.PROGRESS_S", 0.001)
    store, size_bytes = store_in(killed), wal_files(path_in(killed)).size_bytes
    seen: list[Opening] = []
    assert store.opening(IDENTITY) is None

    preparing = asyncio.create_task(store.prepare(IDENTITY))
    while not preparing.done():
        if (opening := store.opening(IDENTITY)) is not None and opening not in seen:
            seen.append(opening)
        await asyncio.sleep(0)

    assert seen[0] == Opening(0, size_bytes)
    assert seen == sorted(seen)
    assert {opening.size_bytes for opening in seen} == {size_bytes}
    assert 0 < seen[-1].done_bytes <= size_bytes
    assert store.opening(IDENTITY) is None


async def test_short_log_is_left_to_the_opening(tmp_path: Path) -> None:
    index = store_in(tmp_path / "before").open(IDENTITY)
    fill(index, BATCH)
    shutil.copytree(tmp_path / "before", tmp_path / "killed")
    index.close()
    store, path = store_in(tmp_path / "killed"), path_in(tmp_path / "killed")
    left = wal_files(path).size_bytes

    await store.prepare(IDENTITY)

    assert wal_files(path).size_bytes == left > 0
    index = store.open(IDENTITY)
    assert_is_whole(index, BATCH)
    index.close()


async def test_missing_index_needs_no_preparation(tmp_path: Path) -> None:
    store = store_in(tmp_path)

    await store.prepare(IDENTITY)

    index = store.open(IDENTITY)
    assert index.state == EMPTY_STATE
    index.close()


async def test_cancelled_replay_leaves_no_process_and_a_whole_index(killed: Path) -> None:
    store = store_in(killed)
    before = set(children())
    preparing = asyncio.create_task(store.prepare(IDENTITY))
    while set(children()) <= before:
        await asyncio.sleep(0)

    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing

    assert set(children()) <= before
    assert wal_files(path_in(killed)).size_bytes > WAL_BYTES_MAX  # killed, not waited for
    await store.prepare(IDENTITY)
    index = store.open(IDENTITY)
    assert_is_whole(index, LONG)
    index.close()


@pytest.mark.regression("A cancelled replay left its process running.")
async def test_replay_cancelled_while_its_process_runs_kills_that_process(killed: Path) -> None:
    store = store_in(killed)
    before = set(children())
    replaying = store.prepare(IDENTITY)
    preparing = asyncio.create_task(replaying)
    while "communicate" not in awaited_by(replaying):
        await asyncio.sleep(0)
    assert set(children()) > before

    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing

    assert set(children()) <= before
    assert wal_files(path_in(killed)).size_bytes > WAL_BYTES_MAX  # killed, not waited for
    assert_opens_whole(killed)


async def test_replay_that_takes_too_long_is_killed_and_retriable(killed: Path) -> None:
    before = set(children())

    with pytest.raises(IndexUnavailableError, match="was not replayed in 0 s"):
        await replay(path_in(killed), tuning_for(LANE_BYTES, KEYS_MAX), limit_s=0)

    assert set(children()) <= before
    assert wal_files(path_in(killed)).size_bytes > WAL_BYTES_MAX
    assert_opens_whole(killed)


async def test_replay_of_an_index_that_is_open_is_retriable(tmp_path: Path) -> None:
    index = store_in(tmp_path).open(IDENTITY)
    fill(index, LONG)

    with pytest.raises(IndexUnavailableError, match="locked by another process"):
        await store_in(tmp_path).prepare(IDENTITY)

    assert_is_whole(index, LONG)
    index.close()


async def test_damage_found_by_a_replay_is_told_by_the_opening(killed: Path) -> None:
    store = store_in(killed)
    (manifest,) = path_in(killed).glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:40])

    await store.prepare(IDENTITY)

    with pytest.raises(IndexCorruptError, match="cannot open"):
        store.open(IDENTITY)
    store.discard(IDENTITY)
    index = store.open(IDENTITY)
    assert index.state == EMPTY_STATE
    index.close()


FULL_DISK_PROCESS = """
import asyncio, resource, sys
from pathlib import Path
from dedupe.model.errors import IndexUnavailableError
from tests.integration.test_rocks_replay import IDENTITY, store_in
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
try:
    asyncio.run(store_in(Path(sys.argv[1])).prepare(IDENTITY))
except IndexUnavailableError as err:
    print(err)
"""


async def test_replay_without_room_keeps_the_index(killed: Path) -> None:
    replayed = run_with(FULL_DISK_PROCESS, killed)

    assert "File too large" in replayed.stdout, replayed.stderr
    store = store_in(killed)
    await store.prepare(IDENTITY)
    index = store.open(IDENTITY)
    assert_is_whole(index, LONG)
    index.close()


KILLED_PROCESS = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.integration.test_rocks_replay import IDENTITY, children, store_in
async def prepare_and_die():
    preparing = asyncio.create_task(store_in(Path(sys.argv[1])).prepare(IDENTITY))
    while not children():
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(prepare_and_die())
"""


async def test_replay_outlives_a_killed_gateway_and_the_next_one_waits_for_it(killed: Path) -> None:
    assert run_with(KILLED_PROCESS, killed).returncode == -signal.SIGKILL
    store = store_in(killed)

    index = None
    async with asyncio.timeout(PATIENCE_S):
        while index is None:
            with suppress(IndexUnavailableError):  # the replay may hold the lock a moment longer
                await store.prepare(IDENTITY)
                index = store.open(IDENTITY)
            await asyncio.sleep(0.01)

    assert_is_whole(index, LONG)
    index.close()


# ---- closing


@pytest.mark.regression("Closing an index held every request up.")
async def test_closing_waits_for_nobody_and_preparing_for_the_closing(tmp_path: Path) -> None:
    store, may_close = store_in(tmp_path), threading.Event()
    for _ in range(CLOSERS):
        store._closers.submit(may_close.wait)
    index = store.open(IDENTITY)
    fill(index, LONG)

    index.close()
    preparing = asyncio.create_task(store.prepare(IDENTITY))
    await asyncio.sleep(0)
    assert wal_files(path_in(tmp_path)).size_bytes > WAL_BYTES_MAX  # the flush is still to come
    may_close.set()
    await preparing

    assert wal_files(path_in(tmp_path)).size_bytes == 0
    index = store.open(IDENTITY)
    assert_is_whole(index, LONG)
    index.close()


@pytest.mark.regression("An index was deleted while it was closing.")
async def test_index_that_is_still_closing_is_deleted_after_that(tmp_path: Path) -> None:
    store, may_close = store_in(tmp_path), threading.Event()
    index = store.open(IDENTITY)
    fill(index, BATCH)
    for _ in range(CLOSERS):
        store._closers.submit(may_close.wait)
    index.close()

    store.discard(IDENTITY)
    assert path_in(tmp_path).exists()
    may_close.set()
    await store.prepare(IDENTITY)

    assert not path_in(tmp_path).exists()
    index = store.open(IDENTITY)
    assert index.state == EMPTY_STATE
    index.close()


async def test_cancelled_preparing_does_not_cancel_the_closing(tmp_path: Path) -> None:
    store, may_close = store_in(tmp_path), threading.Event()
    for _ in range(CLOSERS):
        store._closers.submit(may_close.wait)
    index = store.open(IDENTITY)
    fill(index, BATCH)
    index.close()
    preparing = asyncio.create_task(store.prepare(IDENTITY))
    await asyncio.sleep(0)

    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    may_close.set()

    index = store.open(IDENTITY)
    assert_is_whole(index, BATCH)
    index.close()


def test_closed_store_has_released_every_index(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    index = store.open(IDENTITY)
    fill(index, LONG)
    index.close()

    store.close()

    assert wal_files(path_in(tmp_path)).size_bytes == 0
    assert_is_whole(store_in(tmp_path).open(IDENTITY), LONG)
