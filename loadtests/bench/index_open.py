"""
How long the event loop stands still while a killed gateway's indexes are opened again.

    python -m loadtests.bench.index_open --lanes 4 --keys 4 --memory 512

A process fills one index a lane and kills itself; then all are opened at once in one event loop,
which is asked every millisecond whether it runs: first as they are, then after RocksStore.prepare,
each from a copy of the same folders. Closing is measured with full memtables.
"""

import argparse
import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from pathlib import Path

import uvloop

from dedupe.adapters.rocks_index import RocksIndex, RocksStore
from dedupe.adapters.rocks_replay import wal_bytes
from dedupe.index import IndexIdentity, IndexState, IndexUpdate
from dedupe.types import Entry

MIB = 1024 * 1024
BATCH = 1_000
TICK_S = 0.001
IDLE_S = 5.0


def identity_of(lane: int, lanes: int) -> IndexIdentity:
    """Return which index a lane has."""
    return IndexIdentity("bench", "events", lane, lanes, b"\x00" * 16)


def store_in(root: Path, args: argparse.Namespace) -> RocksStore:
    """Return a store with the sizes that a gateway of these settings has."""
    return RocksStore(root, lanes=args.lanes, memory_bytes=args.memory * MIB, keys_max=100_000_000)


def fill(index: RocksIndex, count: int) -> None:
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
    """Return the longest time in which the loop did not run, and how long the work took, in ms."""
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


async def measure(root: Path, args: argparse.Namespace, *, is_prepared: bool) -> None:
    """Open all lanes at once, fill what memtables hold, and close all."""
    store = store_in(root, args)
    indexes: list[RocksIndex] = []

    async def open_lane(lane: int) -> None:
        identity = identity_of(lane, args.lanes)
        if is_prepared:
            await store.prepare(identity)
        indexes.append(store.open(identity))

    async def open_all() -> None:
        await asyncio.gather(*(open_lane(lane) for lane in range(args.lanes)))

    async def close_all() -> None:
        for index in indexes:
            index.close()
        for lane in range(args.lanes):
            await store.prepare(identity_of(lane, args.lanes))

    stall, _ = await longest_stall(lambda: asyncio.sleep(IDLE_S))
    print(f"idle: longest stall {stall:.0f} ms", flush=True)
    how = "prepare, then open" if is_prepared else "open"
    stall, took = await longest_stall(open_all)
    print(f"{how}: longest stall {stall:.0f} ms, {took:.0f} ms in all", flush=True)
    if is_prepared:
        for index in indexes:
            fill(index, 1_000_000)
        stall, took = await longest_stall(close_all)
        print(f"close: longest stall {stall:.0f} ms, {took:.0f} ms until all files were released", flush=True)


def main() -> None:
    """Build, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--keys", type=float, default=4.0, help="millions a lane")
    parser.add_argument("--memory", type=int, default=512, help="GATEWAY_INDEX_MEMORY in MiB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "killed"
        filling = get_context("spawn").Process(target=fill_and_die, args=(root, args))
        filling.start()
        filling.join()
        logs = [wal_bytes(path) / MIB for path in sorted((root / "events").iterdir())]
        print(f"write-ahead logs: {', '.join(f'{size:.1f}' for size in logs)} MiB")
        for is_prepared in (False, True):
            copy = Path(folder) / "copy"
            shutil.copytree(root, copy)
            os.sync()  # or opening would wait for the copy to reach the disk
            uvloop.run(measure(copy, args, is_prepared=is_prepared))
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
