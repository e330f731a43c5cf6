"""
How soon a lost index is there again: from the log, and from a snapshot in a bucket.

    .venv/bin/python -m loadtests.bench.snapshot_restore --millions 5 --tail 100_000 [--url s3://bucket/prefix]
    .venv/bin/python -m loadtests.bench.snapshot_restore --millions 60 --files

One lane on a private Kafka: records are stored, its index follows them from nothing, a snapshot of it is
made, more records are stored, and the index is lost. With --short the events before the snapshot are of 53
bytes, so that 60 million have a place on a small disk; those behind it are of 720. With --folder all of it is
kept, and found by the next run. With --files there is no log: keys are put into an index, which is copied and
restored. The bucket is a folder unless --url names another.
"""

import argparse
import asyncio
import logging
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog
import uvloop

from app.build import build_router
from app.cli.load.events import event, message_id_of
from app.native_module import native_module
from app.process.interpreter import tune_interpreter
from app.settings.model import Settings
from app.stores import create_indexes
from dedupe.decide.layout import Layout
from dedupe.model.clock import SystemClock
from dedupe.model.types import NewRecord
from dedupe.partition.lane import Lane
from dedupe.partition.snapshotter import Snapshotter
from dedupe.router import Router
from dedupe.storage.index import IndexIdentity
from dedupe.storage.kafka.fetched import native_decoder
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import LogStore, no_crashpoint
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.routing_records import routing_topic_of
from dedupe.storage.snapshots.bucket import Bucket
from dedupe.storage.snapshots.store import Made
from loadtests.bench.index_open import fill, identity_of
from loadtests.bench.rebuild import APPENDED, IDENTITY, INDEX_MEMORY, POLL_S, records_of, routing_of
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config, make_settings

TOPIC = "bench"
MILLION = 1_000_000
MIB = 1024 * 1024
MORE = MILLION
"""Keys between two snapshots."""


class Served(NamedTuple):
    """One start without an index."""

    serves_s: float
    cpu_s: float
    is_fast_s: float  # its filter is whole
    records: int  # read from the log


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=float, default=5, help="of ids in the lane")
    parser.add_argument("--tail", type=int, default=100_000, help="records behind the snapshot")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="short events before the snapshot")
    parser.add_argument("--url", help="of the bucket")
    parser.add_argument("--files", action="store_true", help="without a log")
    parser.add_argument("--folder", type=Path, help="where all is kept")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    tune_interpreter()
    with ExitStack() as stack:
        folder = args.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-snapshot-"))
        )
        args.url = args.url or f"file://{folder}/bucket"
        if args.files:
            uvloop.run(measure_files(args, folder))
        else:
            measure_log(args, folder)
    print(f"load average at the end {os.getloadavg()[0]:.1f}")


def measure_log(args: argparse.Namespace, folder: Path) -> None:
    """Lose a lane's index, before there is a snapshot of it and after."""
    with KafkaBroker(folder / "kafka") as broker:
        for name, step in (("stored", fill_log), ("copied", copy_from_log), ("tail", store_tail)):
            done = folder / name
            if not done.exists():
                uvloop.run(step(args, broker.bootstrap_servers, folder))
                done.touch()
        uvloop.run(measure_snapshot(args, broker.bootstrap_servers, folder))


async def fill_log(args: argparse.Namespace, servers: str, _: Path) -> None:
    """Store records."""
    count = round(args.millions * MILLION)
    await create_topic(servers, TOPIC, configs={"retention.ms": "-1"})
    await create_topic(servers, f"{TOPIC}.quarantine")
    await create_topic(servers, routing_topic_of(TOPIC), partitions=2)
    async with opened(servers) as store:
        began = time.monotonic()
        await append(store, records_of(count, 0, short_event if args.short else event))
        print(f"{count:,} records stored in {time.monotonic() - began:.0f} s", flush=True)


async def copy_from_log(args: argparse.Namespace, servers: str, folder: Path) -> None:
    """Follow the log from nothing, and make a snapshot."""
    async with opened(servers) as store:
        tell("from the log", await serve(store, settings_of(args, folder / "data-log"), copies=True))


def short_event(number: int) -> bytes:
    """Return an event that has an id and nothing else."""
    return b'{"messageId":"%b"}' % message_id_of(number).encode()


async def store_tail(args: argparse.Namespace, servers: str, _: Path) -> None:
    """Store the records behind the snapshot."""
    async with opened(servers) as store:
        await append(store, records_of(args.tail, round(args.millions * MILLION)))


async def measure_snapshot(args: argparse.Namespace, servers: str, folder: Path) -> None:
    """Serve from nothing but the snapshot and the tail, some times."""
    async with opened(servers) as store:
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory(dir=folder) as data:
                served = await serve(store, settings_of(args, Path(data)))
            assert served.records == args.tail, served
            tell("from a snapshot", served)
        with tempfile.TemporaryDirectory(dir=folder) as data, timed("a new standby has caught up") as said:
            said.append(f"{await follow(store, settings_of(args, Path(data))):,} records of the log")


def settings_of(args: argparse.Namespace, data: Path) -> Settings:
    """Return those of a lane with 60 million keys on a gateway of nine, or what was asked for."""
    return make_settings(
        mode="development",
        data_dir=data,
        topic=TOPIC,
        partitions=1,
        index_memory=2 * INDEX_MEMORY,
        index_keys_max=round(2 * args.millions * MILLION),
        snapshots_url=args.url,
    )


@asynccontextmanager
async def opened(servers: str) -> AsyncIterator[LogStore]:
    """Yield the log."""
    config, module = kafka_config(servers), native_module("auto")
    if module is not None:
        config = replace(config, native_decode=native_decoder(module))
    store = await KafkaStore.open(config, routing=routing_of(TOPIC))
    try:
        yield store
    finally:
        await store.close()


async def append(store: LogStore, records: Iterator[NewRecord]) -> None:
    """Store records."""
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    while some := list(islice(records, APPENDED)):
        await log.append(some)
    await log.close()


def lanes_of(store: LogStore, settings: Settings) -> tuple[RocksStore, Router]:
    """Return a gateway's indexes and lanes."""
    indexes = create_indexes(settings, Layout(settings.log.partitions), SystemClock())
    return indexes, build_router(
        settings, store, indexes, identity=IDENTITY, clock=SystemClock(), crashpoint=no_crashpoint
    )


async def serve(store: LogStore, settings: Settings, *, copies: bool = False) -> Served:
    """Return what it takes to serve, from no index; then make a snapshot."""
    began, cpu_began = time.monotonic(), time.process_time()
    indexes, router = lanes_of(store, settings)
    (lane,) = router.lanes
    running = [asyncio.create_task(each.run()) for each in router.all_lanes]
    while not lane.has_served:  # noqa: ASYNC110 - the poll costs nothing beside what is measured
        await asyncio.sleep(POLL_S)
    serves_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    while not is_fast(lane):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    served = Served(serves_s, cpu_s, time.monotonic() - began, lane.metrics.restored_records)
    if copies:
        assert indexes.snapshots is not None
        snapshotter = Snapshotter(
            [lane], indexes.snapshots, clock=SystemClock(), rng=random.Random(), interval_s=600
        )
        with timed("snapshot made") as said:
            made = await snapshotter.make(lane)
            said.append(f"{made.sent_bytes / MIB:,.0f} MiB in {len(made.manifest.files)} files")
    router.drain()
    await asyncio.gather(*running)
    indexes.close()
    return served


async def follow(store: LogStore, settings: Settings) -> int:
    """Return how many records a standby without an index has read when it has caught up."""
    indexes, router = lanes_of(store, settings)
    (lane,) = router.lanes
    following = asyncio.create_task(lane.follower.run())
    while not lane.follower.is_caught_up:  # noqa: ASYNC110 - the poll costs nothing beside what is measured
        await asyncio.sleep(POLL_S)
    following.cancel()
    await asyncio.wait([following])
    indexes.close()
    return lane.metrics.restored_records


def is_fast(lane: Lane) -> bool:
    """Whether the filter of a lane's index knows all of its keys."""
    opened = lane.open_index
    assert opened is not None
    assert isinstance(opened.index, RocksIndex)
    return opened.index._bloom._next is None


def tell(what: str, served: Served) -> None:
    """Print one line."""
    print(
        f"{what}: serves after {served.serves_s:.1f} s ({served.cpu_s:.1f} s of CPU), fast after "
        f"{served.is_fast_s:.1f} s; {served.records:,} records of the log; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


@contextmanager
def timed(what: str) -> Iterator[list[str]]:
    """Print the time that the body took, with what it says."""
    said: list[str] = []
    began, cpu_began = time.monotonic(), time.process_time()
    yield said
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    print(f"{what}: {wall_s:.2f} s, {cpu_s:.2f} s of CPU; {'; '.join(said)}", flush=True)


async def copy_files(snapshots: IndexSnapshots, identity: IndexIdentity, index: RocksIndex) -> Made:
    """Make a snapshot."""
    with timed("snapshot made") as said:
        made = await snapshots.make(identity, index, 0, asyncio.Lock())
        said.append(f"{made.sent_bytes / MIB:,.0f} of {made.manifest.size_bytes / MIB:,.0f} MiB sent")
    return made


async def measure_files(args: argparse.Namespace, folder: Path) -> None:
    """Copy an index into the bucket and back."""
    count = round(args.millions * MILLION)
    store = RocksStore(folder / "index", lanes=1, memory_bytes=INDEX_MEMORY, keys_max=2 * count)
    snapshots = IndexSnapshots(
        Bucket(args.url), store, secret=b"x" * 16, worker="bench", clock=SystemClock(), rng=random.Random(1)
    )
    identity = identity_of(0, 1)
    index = store.open(identity)
    with timed(f"{args.millions} million keys put"):
        fill(index, count)
    made = await copy_files(snapshots, identity, index)
    fill(index, MORE)
    made = await copy_files(snapshots, identity, index)
    index.close()
    await store.prepare(identity)
    for _ in range(args.rounds):
        store.discard(identity)
        await store.prepare(identity)
        with timed("files fetched, compared and synced") as said:
            await snapshots.restore(made.manifest)
            said.append(f"{len(made.manifest.files)} files")
        with timed("opened"):
            await store.prepare(identity)
            index = store.open(identity)
        assert index.state == made.manifest.state
        assert index.lookup([index.state.last_key])[0] is not None
        with timed("filter scanned"):
            while index.warm():
                pass
        index.close()
        await store.prepare(identity)
    store.close()


if __name__ == "__main__":
    main()
