"""
The CPU of an event in a group of workers, relative to one worker, on a real broker.

    .venv/bin/python -m loadtests.bench.group_cost [--rounds 7] [--requests 200] [--batch-events 100]

Groups of one, two and four workers run at the same time, each on a topic of its own, and take turns in an
order drawn anew each round. Ratios are taken within a round, so that they hold on a machine that others use
as well. All get as many batches, once over 16 connections in all, and once over 16 for each worker: with
fewer clients a worker, fewer events wait for each commit, and a group commits more often.

Whether two workers on two cores do more than one on one is computed: a worker uses one core, so a group's
limit is that of its busiest worker. The load generator and the broker are left out, for they would have
machines of their own; what the broker spends is told beside it.
"""

import argparse
import asyncio
import os
import platform
import random
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from app.cli.load.connection import request
from loadtests.bench.load import send_all
from loadtests.bench.usage import cpu_seconds
from loadtests.bench.workload import make_bodies
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker
from tests.support.workers import Workers

PARTITIONS = 8
CONNECTIONS = 16
IDLE_S = 10.0
ALONE = "one worker, alone"


@dataclass
class Spent:
    """The result of one turn, in microseconds of CPU for an event."""

    workers: list[float]
    broker: float
    commit_events: float  # events a commit

    @property
    def total(self) -> float:
        """Of all workers together."""
        return sum(self.workers)


@dataclass
class Contestant:
    """One group, under so much load."""

    name: str
    workers: Sequence[Gateway]
    connections: int
    turns: list[Spent] = field(default_factory=list)
    idle_ms: float = 0.0  # of CPU a second, all its workers together, without load

    def cpu_s(self) -> float:
        """Return the CPU time of all its workers so far."""
        return sum(cpu_seconds(worker.process.pid) for worker in self.workers)

    def take_turn(self, requests: Sequence[bytes], batch_events: int, broker: int) -> None:
        """Send all requests, and note what they cost."""
        pids = [worker.process.pid for worker in self.workers] + [broker]
        events, commits = len(requests) * batch_events, self._commits()
        before = list(map(cpu_seconds, pids))
        send_all([worker.port for worker in self.workers], requests, self.connections)
        *workers, of_broker = [
            (cpu_seconds(pid) - begun) / events * 1e6 for pid, begun in zip(pids, before, strict=True)
        ]
        self.turns.append(Spent(workers, of_broker, events / (self._commits() - commits)))

    def _commits(self) -> int:
        return sum(lane["commits"] for worker in self.workers for lane in worker.stats()["partitions"])


def settings_of(servers: str) -> dict[str, str]:
    """Return the settings of a new topic."""
    return {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
        "GATEWAY_TOPIC": f"events-{uuid.uuid4().hex[:12]}",
        "GATEWAY_PARTITIONS": str(PARTITIONS),
        "GATEWAY_LOGGING_LEVEL": "warning",
    }


async def contestants(stack: AsyncExitStack, folder: Path, servers: str) -> list[Contestant]:
    """Start all, and wait until every lane has an owner, and where there are standbys a follower."""
    alone = Gateway(folder / "alone", settings_of(servers))
    stack.push_async_callback(asyncio.to_thread, alone.stop)
    await asyncio.to_thread(alone.start)
    found = [Contestant(ALONE, [alone], CONNECTIONS)]
    for count in (2, 4):
        for standby in ("false", "true"):
            name = f"{count} workers{', standbys' if standby == 'true' else ''}"
            group = Workers(folder / name, settings_of(servers) | {"GATEWAY_STANDBY": standby}, count)
            stack.push_async_callback(group.stop)
            await group.start()
            found += [Contestant(name, group.all, CONNECTIONS * many) for many in (1, count)]
    return found


def line_of(contestant: Contestant, alone: Contestant) -> str:
    """Return a row of the table: medians, and ratios within a round."""
    pairs = list(zip(contestant.turns, alone.turns, strict=True))
    ratios = sorted(own.total / base.total for own, base in pairs)
    speed = sorted(base.total / max(own.workers) for own, base in pairs)
    turns = contestant.turns
    return (
        f"| {contestant.name} | {contestant.connections} | {median(turn.total for turn in turns):.1f} "
        f"| {median(turn.broker for turn in turns):.1f} | {median(turn.commit_events for turn in turns):.0f} "
        f"| {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
        f"| {median(speed):.2f} ({speed[0]:.2f} to {speed[-1]:.2f}) | {contestant.idle_ms:.0f} |"
    )


HEAD = (
    "| what | connections | workers' CPU, us an event | broker's | events a commit "
    "| to one alone (lowest to highest round) | events a second to one alone, a core each "
    "| CPU while idle, ms a second |",
    "|---|---|---|---|---|---|---|---|",
)


async def measure(folder: Path, rounds: int, count: int, batch_events: int) -> list[str]:
    """Run all rounds; return the table."""
    rng = random.Random(1)
    with KafkaBroker(folder / "kafka") as broker:
        async with AsyncExitStack() as stack:
            found = await contestants(stack, folder, broker.bootstrap_servers)
            for number in range(rounds + 1):
                for contestant in rng.sample(found, len(found)):
                    requests = list(map(request, make_bodies(count, batch_events)))
                    await asyncio.to_thread(contestant.take_turn, requests, batch_events, broker.pid)
                if number == 0:  # it has warmed up
                    for contestant in found:
                        contestant.turns.clear()
            before = [contestant.cpu_s() for contestant in found]
            await asyncio.sleep(IDLE_S)
            for contestant, cpu_s in zip(found, before, strict=True):
                contestant.idle_ms = (contestant.cpu_s() - cpu_s) / IDLE_S * 1e3
            return [line_of(contestant, found[0]) for contestant in found]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--batch-events", type=int, default=100)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="group-cost-") as folder:
        lines = asyncio.run(measure(Path(folder), args.rounds, args.requests, args.batch_events))
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    print(
        f"{os.cpu_count()} cores, {system}; load average {before:.1f} before, {os.getloadavg()[0]:.1f} after."
    )
    events = args.requests * args.batch_events
    print(f"{args.rounds} rounds of {events:,} new events in batches of {args.batch_events} each.")
    print(f"{PARTITIONS} partitions, one broker.\n")
    print("\n".join([*HEAD, *lines]))


if __name__ == "__main__":
    main()
