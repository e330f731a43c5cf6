"""
How long the event loop is blocked while a killed gateway's indexes are opened again.

    python -m loadtests.bench.index_open --lanes 4 --keys 4 --memory 512

A process fills one index for each lane, and kills itself; then all are opened in one event loop, whose pauses
are measured every millisecond: first all at once, then as a gateway's lanes do (IndexRecovery.check), each
from a copy of the same folders. With --spinners, other processes use the processors meanwhile. Closing is
measured with full memtables.
"""

import argparse
import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import uvloop

from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.model.types import Entry
from dedupe.partition.context import LaneContext
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.metrics import LaneMetrics
from dedupe.storage.index import DedupeIndex, IndexIdentity, IndexState, IndexUpdate
from dedupe.storage.pinning import SessionNotes
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.rocksdb.wal import wal_files
from tests.support.settings import QUEUE_LIMITS
from tests.support.sim.sim_log import SimStore

MIB = 1024 * 1024
BATCH = 1_000
TICK_S = 0.001
IDLE_S = 5.0
TOPIC = "events"
KEYS_MAX = 100_000_000
RESTORES_MAX = 4
"""GATEWAY_RESTORE_CONCURRENCY"""
SECRET = Identity(b"\x00" * 16)


def identity_of(lane: int, lanes: int) -> IndexIdentity:
    """Return which index a lane has."""
    return IndexIdentity("bench", TOPIC, lane, lanes, SECRET.check_value)


def store_in(root: Path, args: argparse.Namespace) -> RocksStore:
    """Return a store with the sizes that a gateway of these settings has."""
    return RocksStore(root, lanes=args.lanes, memory_bytes=args.memory * MIB, keys_max=KEYS_MAX)


def fill(index: DedupeIndex, count: int) -> None:
    """Apply `count` random keys."""
    first = index.state.applied_offset
    for offset in range(first, first + count, BATCH):
        keys = [os.urandom(16) for _ in range(BATCH)]
        entries = [(key, Entry(offset + i, b"\x00" * 8)) for i, key in enumerate(keys)]
        end = offset + BATCH
        index.apply(IndexUpdate(entries, IndexState(end, end, 1, end - 1, keys[-1])))


def fill_and_die(root: Path, args: argparse.Namespace) -> None:
    """Leave behind what kill -9 leaves: the last memtables in the write-ahead log only."""
    store = store_in(root, args)
    indexes = [store.open(identity_of(lane, args.lanes)) for lane in range(args.lanes)]
    for index in indexes:
        fill(index, round(args.keys * 1_000_000))
    os.kill(os.getpid(), signal.SIGKILL)


async def longest_stall(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return the longest pause of the loop, and the duration of the work, in ms."""
    stalls = [0.0]

    async def tick() -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            stalls.append(now - before)
            before = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(10 * TICK_S)
    began = time.perf_counter()
    await work()
    took = time.perf_counter() - began
    await asyncio.sleep(10 * TICK_S)
    ticking.cancel()
    return max(stalls) * 1000, took * 1000


def recoveries_of(store: RocksStore, lanes: int) -> list[IndexRecovery]:
    """Return what opens the indexes of a gateway whose log is pinned; the log itself has no part in it."""
    log = SimStore(log_id="bench")
    log.create_topic(TOPIC, lanes)
    context = LaneContext(
        topic=TOPIC,
        partitions=lanes,
        log_id=log.log_id,
        identity=SECRET,
        clock=SystemClock(),
        store=store,
        window_policy=WindowPolicy(window_ms=7 * 86_400_000, keys_max=KEYS_MAX),
        session_policy=SessionPolicy(0, 1, 0),
        session_notes=SessionNotes(log, TOPIC),
        restore_slots=asyncio.Semaphore(RESTORES_MAX),
        open_turn=asyncio.Lock(),
        limits=QUEUE_LIMITS,
    )
    return [
        IndexRecovery(lane, log.partition_log(TOPIC, lane), context, LaneMetrics()) for lane in range(lanes)
    ]


async def check_all(recoveries: Sequence[IndexRecovery]) -> None:
    """Do what the lanes do at a start, as many at a time."""
    slots = asyncio.Semaphore(RESTORES_MAX)

    async def check(recovery: IndexRecovery) -> None:
        async with slots:
            await recovery.check()

    await asyncio.gather(*(check(recovery) for recovery in recoveries))


async def measure_unprepared(store: RocksStore, args: argparse.Namespace) -> None:
    """Open all lanes at once."""
    indexes: list[RocksIndex] = []

    async def open_lane(lane: int) -> None:
        indexes.append(store.open(identity_of(lane, args.lanes)))

    async def open_all() -> None:
        await asyncio.gather(*(open_lane(lane) for lane in range(args.lanes)))

    stall, _ = await longest_stall(lambda: asyncio.sleep(IDLE_S))
    print(f"idle: longest stall {stall:.0f} ms", flush=True)
    stall, took = await longest_stall(open_all)
    print(f"open: longest stall {stall:.0f} ms, {took:.0f} ms in all", flush=True)
    for index in indexes:
        index.close()


async def measure_prepared(store: RocksStore, args: argparse.Namespace) -> None:
    """Open all lanes as a gateway does, fill what memtables hold, and close all."""
    recoveries = recoveries_of(store, args.lanes)

    async def close_all() -> None:
        for recovery in recoveries:
            recovery.close()
        for lane in range(args.lanes):
            await store.prepare(identity_of(lane, args.lanes))

    stall, took = await longest_stall(lambda: check_all(recoveries))
    print(f"IndexRecovery.check: longest stall {stall:.0f} ms, {took:.0f} ms in all", flush=True)
    for recovery in recoveries:
        assert recovery.opened is not None
        fill(recovery.opened.index, 1_000_000)
    stall, took = await longest_stall(close_all)
    print(f"close: longest stall {stall:.0f} ms, {took:.0f} ms until all files were released", flush=True)


def spin() -> None:
    """Use a processor until the benchmark ends."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(1_000_000))


@contextmanager
def spinners(count: int) -> Iterator[None]:
    """Run processes that use the processors."""
    spinning = [get_context("spawn").Process(target=spin) for _ in range(count)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()


def main() -> None:
    """Build, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--keys", type=float, default=4.0, help="millions a lane")
    parser.add_argument("--memory", type=int, default=512, help="GATEWAY_INDEX_MEMORY in MiB")
    parser.add_argument("--spinners", type=int, default=0, help="processes that compete for the processors")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "killed"
        filling = get_context("spawn").Process(target=fill_and_die, args=(root, args))
        filling.start()
        filling.join()
        logs = [wal_files(path).size_bytes / MIB for path in sorted((root / TOPIC).iterdir())]
        print(f"write-ahead logs: {', '.join(f'{size:.1f}' for size in logs)} MiB")
        for measure in (measure_unprepared, measure_prepared):
            copy = Path(folder) / "copy"
            shutil.copytree(root, copy)
            os.sync()  # or opening would wait for the copy to reach the disk
            with spinners(args.spinners):
                store = store_in(copy, args)
                uvloop.run(measure(store, args))
                store.close()
            print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
