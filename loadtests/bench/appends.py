"""
The cost of an append without a gateway: appends to lanes' logs, one process, one real broker.

    .venv/bin/python -m loadtests.bench.appends [--lanes 8] [--seconds 5] [--rounds 3]

Each lane appends, pauses like a gateway's lane, and appends again. Results of one run can be compared, and
those of two versions that ran in turn on one broker (`--bootstrap-servers`).
"""

import argparse
import asyncio
import gc
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from app.cli.load.events import event
from dedupe.model.record import build_record
from dedupe.model.types import Event, NewRecord
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import PartitionLog
from loadtests.bench.usage import cpu_seconds
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config

EVENTS = (1, 12, 100)
"""In an append: a request of one; a batch of 100 that eight lanes share; a full one a lane."""

WARM_UP_S = 2.0


def records_of(count: int) -> list[NewRecord]:
    """Return a lane's records for `count` events."""
    return [
        build_record(
            Event(bytes(16), 0, bytes(8), "web", f"ajs-next-{number:032x}", event(number)),
            lane_seq=number,
            timestamp_ms=1_700_000_000_000,
        )
        for number in range(count)
    ]


async def appends(log: PartitionLog, records: list[NewRecord], until: float) -> int:
    """Append the same again and again, and return how often."""
    done = 0
    while time.monotonic() < until:
        await log.append(records)
        done += 1
        await asyncio.sleep(log.pause_after_append_s)
    return done


async def measure(logs: Sequence[PartitionLog], events: int, seconds: float) -> tuple[int, float]:
    """Return the number of appends, and the CPU of each in this process, in microseconds."""
    records = records_of(events)
    cpu_before, until = time.process_time(), time.monotonic() + seconds
    done = sum(await asyncio.gather(*(appends(log, records, until) for log in logs)))
    return done, (time.process_time() - cpu_before) / done * 1e6


async def run(servers: str, broker_pid: int | None, args: argparse.Namespace) -> None:
    """Fence, warm up, measure and print."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    await create_topic(servers, topic, partitions=args.lanes)
    store = await KafkaStore.open(kafka_config(servers))
    logs = [store.partition_log(topic, number) for number in range(args.lanes)]
    for log in logs:
        await log.fence()
    await measure(logs, EVENTS[0], WARM_UP_S)
    gc.collect()
    gc.freeze()
    for _ in range(args.rounds):
        for events in args.events or EVENTS:
            broker_before = cpu_seconds(broker_pid) if broker_pid else 0.0
            done, cpu_us = await measure(logs, events, args.seconds)
            broker_us = (cpu_seconds(broker_pid) - broker_before) / done * 1e6 if broker_pid else 0.0
            print(
                f"{events:4} events: {cpu_us:7.1f} us CPU an append, {cpu_us / events:6.2f} an event;"
                f" broker {broker_us:7.1f} us; {done / args.seconds:6.0f} appends/s",
                flush=True,
            )
    for log in logs:
        await log.close()
    await store.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--events", type=int, nargs="*", help="in an append")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap-servers", help="a running broker, instead of one of its own")
    parser.add_argument("--broker-pid", type=int, help="of a running broker, to tell its CPU too")
    args = parser.parse_args()
    with ExitStack() as stack:
        servers, pid = args.bootstrap_servers, args.broker_pid
        if servers is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-bench-"))
            broker = stack.enter_context(KafkaBroker(Path(folder) / "kafka", jvm_flags=["-Xmx1g"]))
            servers, pid = broker.bootstrap_servers, broker.pid
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(servers, pid, args))


if __name__ == "__main__":
    main()
