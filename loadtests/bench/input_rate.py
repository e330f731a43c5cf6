"""
Events of an input topic: how fast, and for how much CPU, beside HTTP and a bare copy of the topic.

    .venv/bin/python -m loadtests.bench.input_rate [--rounds 5] [--events 50000] [--batch-events 100]

A gateway reads a topic that is filled already; another one gets as many events by HTTP, in batches over 16
connections; and a process of aiokafka's consumer and producer, which copies as little as one can, copies the
topic. They take turns in an order drawn anew each round, on one broker; ratios are taken within a round, so
that they hold on a machine that others use as well. New events all; a round of the copy and of the input
reads events that no round before has read.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.cli.load.connection import request
from app.cli.load.events import event, first_unused
from loadtests.bench.load import send_all
from loadtests.bench.usage import cpu_seconds
from loadtests.bench.workload import make_bodies
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker, create_topic

PARTITIONS = 8
CONNECTIONS = 16
POLL_S = 0.05
LINGER_MS = 5
COPY_RECORDS_MAX = 1_000
INPUT, HTTP, COPY = "input topic", "HTTP", "bare copy"


@dataclass
class Spent:
    """The result of one turn."""

    us: float
    """CPU of an event, in microseconds."""
    events_per_s: float


async def fill(servers: str, topic: str, events: int) -> None:
    """Append new events to a topic, evenly over its partitions."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=LINGER_MS)
    await producer.start()
    try:
        first = first_unused()
        for number in range(events):
            await producer.send(topic, value=event(first + number), partition=number % PARTITIONS)
        await producer.flush()
    finally:
        await producer.stop()


async def copy(servers: str, source: str, target: str) -> None:
    """Copy a topic: read to its end, append, wait for the acknowledgement, commit. A process runs it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=f"copy-{source}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=LINGER_MS
    )
    await consumer.start()
    await producer.start()
    try:
        places = [TopicPartition(source, number) for number in range(PARTITIONS)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < ends[place] for place in places]):
            batches = await consumer.getmany(timeout_ms=500, max_records=COPY_RECORDS_MAX)
            waiting = [
                await producer.send(target, value=record.value, key=record.key)
                for records in batches.values()
                for record in records
            ]
            await asyncio.gather(*waiting)
            await consumer.commit()
    finally:
        await producer.stop()
        await consumer.stop()


class Bench:
    """The contestants on one broker."""

    def __init__(self, folder: Path, servers: str, native: str) -> None:
        self.folder, self.servers, self.native = folder, servers, native
        self.raw = f"raw-{uuid.uuid4().hex[:12]}"
        self.http = Gateway(folder / "http", self._settings())

    def _settings(self) -> dict[str, str]:
        return {
            "GATEWAY_LOG": "kafka",
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": self.servers,
            "GATEWAY_TOPIC": f"events-{uuid.uuid4().hex[:12]}",
            "GATEWAY_PARTITIONS": str(PARTITIONS),
            "GATEWAY_LOGGING_LEVEL": "warning",
            "GATEWAY_NATIVE": self.native,
        }

    async def start(self, stack: ExitStack) -> None:
        """Start both gateways; that of the topic waits for records."""
        await create_topic(self.servers, self.raw, partitions=PARTITIONS, configs={"retention.ms": "-1"})
        inputs = self.folder / "inputs.yaml"
        spec = {"name": "raw", "topic": self.raw, "source": "bench", "start": "earliest"}
        inputs.write_text(json.dumps({"inputs": [spec | {"id": {"field": "messageId"}}]}))
        self.input = Gateway(self.folder / "input", self._settings() | {"GATEWAY_INPUTS_FILE": str(inputs)})
        self.admin = stack.enter_context(httpx.Client())
        for gateway in (self.http, self.input):
            stack.callback(gateway.stop)
            gateway.start()

    def by_http(self, events: int, batch_events: int) -> Spent:
        """Send new events."""
        requests = list(map(request, make_bodies(events // batch_events, batch_events)))
        before, began = cpu_seconds(self.http.process.pid), time.monotonic()
        send_all(self.http.port, requests, CONNECTIONS)
        return self._spent(events, cpu_seconds(self.http.process.pid) - before, began)

    def by_topic(self, events: int) -> Spent:
        """Have new events read: paused while they are appended, so that reading alone is measured."""
        self._tell("pause")
        target = (start := self._accepted()) + events
        asyncio.run(fill(self.servers, self.raw, events))
        self._tell("resume")
        while (first := self._accepted()) == start:  # it is heard within a second
            time.sleep(POLL_S)
        before, began = cpu_seconds(self.input.process.pid), time.monotonic()
        while self._accepted() < target:
            time.sleep(POLL_S)
        return self._spent(target - first, cpu_seconds(self.input.process.pid) - before, began)

    def by_copy(self, events: int) -> Spent:
        """Have new events copied, by a process whose start is left out of both figures."""
        source, target = (f"copy-{uuid.uuid4().hex[:12]}" for _ in range(2))
        for topic in (source, target):
            asyncio.run(create_topic(self.servers, topic, partitions=PARTITIONS))
        asyncio.run(fill(self.servers, source, events))
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--copy", self.servers, source, target],
            check=True,
            capture_output=True,
        )
        cpu_s, seconds = map(float, done.stdout.split())
        return Spent(cpu_s / events * 1e6, events / seconds)

    def _spent(self, events: int, cpu_s: float, began: float) -> Spent:
        return Spent(cpu_s / events * 1e6, events / (time.monotonic() - began))

    def _accepted(self) -> int:
        answer = self.admin.get(f"{self.input.admin_url}/admin/v1/inputs")
        accepted: int = answer.json()["inputs"][0]["accepted"]
        return accepted

    def _tell(self, word: str) -> None:
        self.admin.post(f"{self.input.admin_url}/admin/v1/inputs/raw/{word}").raise_for_status()


def line_of(name: str, turns: Sequence[Spent], http: Sequence[Spent], bare: Sequence[Spent]) -> str:
    """Return a row of the table: medians, and ratios within a round."""
    speed = sorted(own.events_per_s / base.events_per_s for own, base in zip(turns, http, strict=True))
    cpu = sorted(own.us / base.us for own, base in zip(turns, bare, strict=True))
    us, events_per_s = median(turn.us for turn in turns), median(turn.events_per_s for turn in turns)
    return (
        f"| {name} | {us:.1f} | {events_per_s:,.0f} "
        f"| {median(speed):.2f} ({speed[0]:.2f} to {speed[-1]:.2f}) "
        f"| {median(cpu):.2f} ({cpu[0]:.2f} to {cpu[-1]:.2f}) |"
    )


HEAD = (
    "| path | CPU, us an event | events/s | events/s to HTTP (lowest to highest) | CPU to a bare copy |",
    "|---|---|---|---|---|",
)


def measure(folder: Path, rounds: int, events: int, batch_events: int, native: str) -> list[str]:
    """Run all rounds; return the table."""
    rng = random.Random(1)
    turns: dict[str, list[Spent]] = {INPUT: [], HTTP: [], COPY: []}
    with KafkaBroker(folder / "kafka") as broker, ExitStack() as stack:
        bench = Bench(folder, broker.bootstrap_servers, native)
        asyncio.run(bench.start(stack))
        ways = {
            INPUT: lambda: bench.by_topic(events),
            HTTP: lambda: bench.by_http(events, batch_events),
            COPY: lambda: bench.by_copy(events),
        }
        for number in range(rounds + 1):
            for name in rng.sample(sorted(ways), len(ways)):
                turns[name].append(ways[name]())
            if number == 0:  # it has warmed up
                for each in turns.values():
                    each.clear()
    return [line_of(name, own, turns[HTTP], turns[COPY]) for name, own in turns.items()]


def main() -> None:
    """Measure and print, or copy as one of the contestants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--batch-events", type=int, default=100)
    parser.add_argument("--native", choices=["off", "required"], default="required")
    parser.add_argument("--copy", nargs=3, metavar=("SERVERS", "SOURCE", "TARGET"))
    args = parser.parse_args()
    if args.copy:
        before, began = time.process_time(), time.monotonic()
        asyncio.run(copy(*args.copy))
        print(time.process_time() - before, time.monotonic() - began)
        return
    with tempfile.TemporaryDirectory(prefix="input-rate-") as folder:
        lines = measure(Path(folder), args.rounds, args.events, args.batch_events, args.native)
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    print(f"{os.cpu_count()} cores, {system}; load average {os.getloadavg()[0]:.1f} after.")
    print(f"{args.rounds} rounds of {args.events:,} new events; by HTTP in batches of {args.batch_events}.")
    print(f"{PARTITIONS} partitions each, one broker, native module {args.native}.\n")
    print("\n".join([*HEAD, *lines]))


if __name__ == "__main__":
    main()
