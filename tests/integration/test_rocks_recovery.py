"""A lane that fails and recovers, cancelled at any await, leaves no lock, no thread and no half an index."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import count
from pathlib import Path
from types import coroutine
from typing import Any

import pytest

from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.partition.context import LaneContext
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.metrics import LaneMetrics
from dedupe.storage.index import EMPTY_STATE, DedupeIndex, IndexIdentity
from dedupe.storage.pinning import SessionNotes
from dedupe.storage.rocksdb.store import CLOSERS, LANE_BYTES_MIN, RocksStore
from tests.contract.index_contract import KEYS_MAX, update_of
from tests.support.settings import QUEUE_LIMITS
from tests.support.sim.sim_log import SimStore
from tests.support.waiting import PATIENCE_S

SECRET = Identity(b"x" * 16)
IDENTITY = IndexIdentity("sim", "events", 0, 1, SECRET.check_value)
BATCH = 100
AWAITS_MIN = 10
"""Of `fail_and_recover`; with fewer, the test would not have been where it claims to have been."""


def store_in(root: Path) -> RocksStore:
    return RocksStore(root, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)


def recovery_of(store: RocksStore, log: SimStore | None = None) -> IndexRecovery:
    if log is None:
        log = SimStore(log_id=IDENTITY.log_id)
        log.create_topic(IDENTITY.topic, 1)
    context = LaneContext(
        topic=IDENTITY.topic,
        partitions=1,
        log_id=log.log_id,
        identity=SECRET,
        clock=SystemClock(),
        store=store,
        window_policy=WindowPolicy(1_000_000, KEYS_MAX),
        session_policy=SessionPolicy(10**9, 10_000, 10**9),
        session_notes=SessionNotes(log, IDENTITY.topic),
        restore_slots=asyncio.Semaphore(1),
        open_turn=asyncio.Lock(),
        limits=QUEUE_LIMITS,
    )
    return IndexRecovery(0, log.partition_log(IDENTITY.topic, 0), context, LaneMetrics())


def begin(root: Path, identity: IndexIdentity) -> None:
    store = store_in(root)
    index = store.open(identity)
    index.apply(update_of(0, BATCH))
    index.close()
    store.close()


def index_of(recovery: IndexRecovery) -> DedupeIndex:
    assert recovery.opened is not None
    return recovery.opened.index


async def fail_and_recover(recovery: IndexRecovery) -> None:
    """Do what a lane does whose index is of another log, then unavailable, then corrupt."""
    try:
        await recovery.check()
        index_of(recovery).apply(update_of(0, BATCH))
        recovery.close()
        await recovery.check()
        recovery.discard()
        await recovery.check()
        index_of(recovery).apply(update_of(0, BATCH))
    finally:
        recovery.close()


@coroutine
def cancelled_at(number: int, work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
    """Cancel the task that runs this at its `number`-th await of something that is not ready."""
    resume: Callable[[], Any] = partial(work.send, None)
    for awaits in count():
        try:
            awaited = resume()
        except StopIteration:
            return
        if awaits == number:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield awaited
            resume = partial(work.send, None)
        except asyncio.CancelledError as err:
            resume = partial(work.throw, err)


async def is_cancelled_at(number: int, work: Coroutine[Any, Any, None]) -> bool:
    async def run() -> None:
        await cancelled_at(number, work)

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


def open_files(root: Path) -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except FileNotFoundError:  # that of the listing
            continue
    return [path for path in found if path.startswith(str(root))]


async def assert_nothing_is_left(root: Path) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("index-close")]
    async with asyncio.timeout(PATIENCE_S):
        while open_files(root):  # a file that is still being loaded is released soon
            await asyncio.sleep(0.001)
    store = store_in(root)
    recovery = recovery_of(store)
    await recovery.check()
    assert recovery._metrics.rebuilds <= 1  # that of the other log, if nobody came to it before
    assert index_of(recovery).state in (EMPTY_STATE, update_of(0, BATCH).state)
    recovery.close()
    store.close()


@pytest.mark.regression("A lane cancelled in its recovery left an open index behind.")
async def test_lane_cancelled_at_any_await_of_its_recovery_leaves_nothing_behind(tmp_path: Path) -> None:
    for number in count():
        root = tmp_path / str(number)
        begin(root, IDENTITY._replace(log_id="another"))
        store = store_in(root)
        is_cancelled = await is_cancelled_at(number, fail_and_recover(recovery_of(store)))
        store.close()
        await assert_nothing_is_left(root)
        if not is_cancelled:
            break
    assert number >= AWAITS_MIN


@pytest.mark.regression("Deleting an index held every request up.")
async def test_unusable_index_is_deleted_without_holding_the_loop(tmp_path: Path) -> None:
    begin(tmp_path, IDENTITY._replace(log_id="another"))
    store, may_close = store_in(tmp_path), threading.Event()
    for _ in range(CLOSERS):
        store._closers.submit(may_close.wait)
    recovery = recovery_of(store)
    checking = asyncio.create_task(recovery.check())

    async with asyncio.timeout(PATIENCE_S):
        while not recovery._metrics.rebuilds:
            await asyncio.sleep(0.001)
    assert recovery.opened is None
    may_close.set()
    await checking

    assert index_of(recovery).state == EMPTY_STATE
    recovery.close()
    store.close()


async def test_index_to_rebuild_is_deleted_without_holding_the_loop(tmp_path: Path) -> None:
    begin(tmp_path, IDENTITY)
    store, may_close = store_in(tmp_path), threading.Event()
    recovery = recovery_of(store)
    await recovery.check()
    for _ in range(CLOSERS):
        store._closers.submit(may_close.wait)
    replaying = asyncio.create_task(recovery.replay(0, lambda _: None))  # the log has lost its records

    async with asyncio.timeout(PATIENCE_S):
        while not recovery._metrics.rebuilds:
            await asyncio.sleep(0.001)
    assert recovery.opened is None
    may_close.set()
    await replaying

    assert index_of(recovery).state == EMPTY_STATE
    recovery.close()
    store.close()


@pytest.mark.regression("a cancelled restore left a deletion or a move under way while the index was opened")
async def test_move_to_the_place_of_an_index_ends_though_it_is_cancelled(tmp_path: Path) -> None:
    for number in range(3):
        root = tmp_path / str(number)
        begin(root, IDENTITY)
        store = store_in(root)
        folder = store.path_of(IDENTITY).with_suffix(".restoring")
        shutil.copytree(store.path_of(IDENTITY), folder)
        store.discard(IDENTITY)
        await is_cancelled_at(number, store.install(IDENTITY, folder))
        shutil.rmtree(folder, ignore_errors=True)
        await store.prepare(IDENTITY)
        index = store.open(IDENTITY)
        assert index.state == update_of(0, BATCH).state
        index.close()
        store.close()
