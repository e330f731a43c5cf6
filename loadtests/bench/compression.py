"""
What `compression.type=zstd` of the clean topic costs and saves: the brokers' CPU, their disk, and a rebuild.

    .venv/bin/python -m loadtests.bench.compression [--records 200_000] [--batch 100] [--events sdk]

Events are generated, all of one shape; or those that SDKs have sent, of which each has other ids, times,
users, pages and browsers, by chance, so that they are no more alike than those of thousands of clients.

One broker, one lane. The gateway writes without compression and the broker compresses what it stores; whoever
reads it unpacks it. CPU is that of processes, so other work on the machine matters little.
"""

import argparse
import base64
import gzip
import logging
import random
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson
import psutil
import structlog
import uvloop

from app.native_module import native_module
from app.process.interpreter import tune_interpreter
from dedupe.model.identity import fingerprint_of
from dedupe.model.record import build_record
from dedupe.model.types import Event, NewRecord
from dedupe.storage.kafka.fetched import native_decoder
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.routing_records import routing_topic_of
from loadtests.bench.rebuild import FIRST_MS, IDENTITY, INDEX_MEMORY, SOURCE, rebuild, records_of, routing_of
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config, make_settings

TYPES = ("uncompressed", "zstd", "lz4")
CAPTURED = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "sdk_requests.jsonl"
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(rb"2026-[0-9T:.-]{8,}")
MS = re.compile(rb"\b17\d{11}\b")
OF_A_CLIENT = re.compile(rb'("(?:userId|anonymousId|email|path|title|referrer)": ?")[^"]*')
BROWSER = re.compile(rb"(?<=/)\d+[.\d]*(?=[ \"])")


class Cost(NamedTuple):
    """What one topic costs, a record."""

    broker_us: float  # to store it
    disk_bytes: float
    read_us: float  # this process, to rebuild an index from it
    read_broker_us: float


def sdk_events() -> list[bytes]:
    """Return the events of the captured requests."""
    found: list[bytes] = []
    for line in CAPTURED.read_bytes().splitlines():
        sent = base64.b64decode(orjson.loads(line)["body_b64"])
        document = orjson.loads(gzip.decompress(sent) if sent.startswith(b"\x1f\x8b") else sent)
        found += map(orjson.dumps, document.get("batch", [document]))
    return found


def sdk_records_of(count: int) -> Iterator[NewRecord]:
    """Yield what a lane would have stored of the captured events, each varied."""
    rng, events = random.Random(1), sdk_events()
    key_of = IDENTITY.message_keys(SOURCE)
    for number in range(count):
        ms = FIRST_MS + number // 10
        at = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").encode()
        value = TIME.sub(at, MS.sub(b"%d" % ms, rng.choice(events)))
        value = UUID.sub(lambda _: str(uuid.UUID(int=rng.getrandbits(128))).encode(), value)
        value = OF_A_CLIENT.sub(lambda found: found[1] + b"%x" % int(rng.paretovariate(0.3)), value)
        value = BROWSER.sub(lambda _: b"%d.%d" % (rng.randrange(20), rng.randrange(50)), value)
        message_id = str(uuid.UUID(int=rng.getrandbits(128)))
        stored = Event(key_of(message_id.encode()), 0, fingerprint_of(value), SOURCE, message_id, value)
        yield build_record(stored, lane_seq=number, timestamp_ms=ms)


EVENTS = {"generated": records_of, "sdk": sdk_records_of}


async def measure(broker: KafkaBroker, folder: Path, kind: str, count: int, batch: int, events: str) -> Cost:
    """Fill a topic, then rebuild an index from it."""
    topic = f"bench-{kind}-{uuid.uuid4().hex[:8]}"
    configs = {"retention.ms": "-1", "compression.type": kind}
    await create_topic(broker.bootstrap_servers, topic, configs=configs)
    await create_topic(broker.bootstrap_servers, f"{topic}.quarantine")
    await create_topic(broker.bootstrap_servers, routing_topic_of(topic), partitions=2)
    config, module = kafka_config(broker.bootstrap_servers), native_module("auto")
    if module is not None:
        config = replace(config, native_decode=native_decoder(module))
    async with AsyncExitStack() as stack:
        store = await KafkaStore.open(config, routing=routing_of(topic))
        stack.push_async_callback(store.close)
        log = store.partition_log(topic, 0)
        await log.fence()
        process, records = psutil.Process(broker.pid), EVENTS[events](count)
        before = _cpu_s(process)
        while some := list(islice(records, batch)):
            await log.append(some)
        stored_s = _cpu_s(process) - before
        await log.close()
        disk = sum(path.stat().st_size for path in broker.folder.rglob(f"{topic}-0/*.log"))
        settings = make_settings(
            mode="development",
            data_dir=folder / topic,
            topic=topic,
            partitions=1,
            index_memory=2 * INDEX_MEMORY,
            index_keys_max=max(1_000_000, count),
        )
        before = _cpu_s(process)
        _, cpu_s = await rebuild(store, settings, count)
        read_s = _cpu_s(process) - before
    return Cost(*(value / count for value in (stored_s * 1e6, disk, cpu_s * 1e6, read_s * 1e6)))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def run(args: argparse.Namespace, broker: KafkaBroker, folder: Path) -> None:
    """Measure each type by turns, and print a table."""
    await measure(broker, folder, TYPES[0], min(args.records, 50_000), args.batch, args.events)  # warm up
    print(
        "| compression.type | broker us a record | bytes a record | rebuild us a record | broker us to read |"
    )
    print("|---|---|---|---|---|")
    for _ in range(args.rounds):
        for kind in TYPES:
            began = time.monotonic()
            cost = await measure(broker, folder, kind, args.records, args.batch, args.events)
            figures = " | ".join(f"{value:.1f}" for value in cost)
            print(f"| {kind} | {figures} | ({time.monotonic() - began:.0f} s)", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--events", choices=EVENTS, default="generated")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-compression-")))
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        tune_interpreter()
        uvloop.run(run(args, broker, folder))


if __name__ == "__main__":
    main()
