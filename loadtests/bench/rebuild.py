"""
How quickly a lane's index is rebuilt from the log: what a gateway does whose index was lost.

    .venv/bin/python -m loadtests.bench.rebuild [--log kafka] [--records 1_000_000] [--rounds 3]

One lane, one process: records of 720 bytes are stored, then an empty index follows them to the end. Kafka's
record batches are read by turns with and without the native module, if it is installed.
"""

import argparse
import asyncio
import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

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
from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.record import build_record
from dedupe.model.types import Event, NewRecord
from dedupe.storage.kafka.fetched import native_decoder
from dedupe.storage.kafka.routing_topic import RoutingKey
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import LogStore, no_crashpoint
from dedupe.storage.routing_records import mac_key_of, routing_topic_of
from dedupe.storage.sqlite.log import SqliteStore
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config, make_settings

IDENTITY = Identity(b"the bench's, of 24 bytes")
SOURCE = "bench"
APPENDED = 1_000
FIRST_MS = 1_700_000_000_000
POLL_S = 0.02
INDEX_MEMORY = 57 * 1024 * 1024
"""Of one lane: a ninth of GATEWAY_INDEX_MEMORY, as each of eight lanes and quarantine has."""


def records_of(count: int, first: int = 0, event_of: Callable[[int], bytes] = event) -> Iterator[NewRecord]:
    """Yield what a lane would have stored, from its `first` record."""
    key_of = IDENTITY.message_keys(SOURCE)
    for number in range(first, first + count):
        value, message_id = event_of(number), message_id_of(number)
        stored = Event(key_of(message_id.encode()), 0, fingerprint_of(value), SOURCE, message_id, value)
        yield build_record(stored, lane_seq=number, timestamp_ms=FIRST_MS + number // 10)


def routing_of(topic: str) -> RoutingKey:
    """Return what proves the notes of a topic."""
    return RoutingKey(topic, mac_key_of(IDENTITY))


async def fill(store: LogStore, topic: str, count: int) -> None:
    """Store `count` records."""
    log = store.partition_log(topic, 0)
    await log.fence()
    records = records_of(count)
    while some := list(islice(records, APPENDED)):
        await log.append(some)
    await log.close()


async def rebuild(store: LogStore, settings: Settings, count: int) -> tuple[float, float]:
    """Return the time and the CPU of a lane, in seconds, from an empty index to serving."""
    indexes = create_indexes(settings, Layout(settings.log.partitions), SystemClock())
    router = build_router(
        settings,
        store,
        indexes,
        identity=IDENTITY,
        clock=SystemClock(),
        crashpoint=no_crashpoint,
    )
    (lane,) = router.lanes
    began, cpu_began = time.monotonic(), time.process_time()
    running = [asyncio.create_task(each.run()) for each in router.all_lanes]
    while not lane.has_served:  # noqa: ASYNC110 - the poll costs nothing beside what is measured
        await asyncio.sleep(POLL_S)
    took = time.monotonic() - began, time.process_time() - cpu_began
    assert lane.metrics.restored_records == count, lane.metrics.restored_records
    router.drain()
    await asyncio.gather(*running)
    indexes.close()
    return took


async def run(args: argparse.Namespace, servers: str | None, folder: Path) -> None:
    """Fill the log, rebuild some times, and print."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    if servers is None:
        embedded = await SqliteStore.open(folder / "log.sqlite")
        await embedded.create_topic(topic, 1)
        await embedded.create_topic(f"{topic}.quarantine", 1)
        store: LogStore = embedded
    else:
        await create_topic(servers, topic, configs={"retention.ms": "-1"})
        await create_topic(servers, f"{topic}.quarantine")
        await create_topic(servers, routing_topic_of(topic), partitions=2)
        store = await KafkaStore.open(kafka_config(servers), routing=routing_of(topic))
    await fill(store, topic, args.records)
    stores = {"Python": store}
    module = native_module("auto")
    if servers is not None and module is not None:
        decode = native_decoder(module)
        config = replace(kafka_config(servers), native_decode=decode)
        stores["native"] = await KafkaStore.open(config, routing=routing_of(topic))
    for number, (path, store) in product(range(args.rounds), stores.items()):
        settings = make_settings(
            mode="development",
            data_dir=folder / f"data-{number}-{path}",
            topic=topic,
            partitions=1,
            index_memory=2 * INDEX_MEMORY,
            index_keys_max=max(1_000_000, args.records),
        )
        wall_s, cpu_s = await rebuild(store, settings, args.records)
        print(
            f"{path}: {args.records:,} records in {wall_s:.2f} s: {args.records / wall_s:,.0f}/s, "
            f"{cpu_s / args.records * 1e6:.2f} us of CPU each",
            flush=True,
        )
    for store in stores.values():
        await store.close()


def main() -> None:
    """Measure a log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--log", choices=("sqlite", "kafka"), default="sqlite")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-rebuild-")))
        servers = None
        if args.log == "kafka":
            servers = stack.enter_context(KafkaBroker(folder / "kafka")).bootstrap_servers
        tune_interpreter()
        uvloop.run(run(args, servers, folder))


if __name__ == "__main__":
    main()
