"""
`make fault`: faults of a group of workers on a real broker, under load, and the length of their effect.

Every scenario has a topic and a group of its own. Its clients send to all workers, lose answers and send
again; they skip a worker that is down, as a load balancer would. At the end the log is compared with every
answer, and every worker is sent a retry.
"""

import argparse
import asyncio
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.http import cli, division_of
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.verdict import assert_exactly_once, read_kafka
from tests.support.waiting import until_in_thread
from tests.support.workers import Load, Worker, Workers

PARTITIONS = 8
LOAD_S = 2.0
FREEZE_S = 20.0
STARTED_IN_S = 60.0

SAFE = {"min.insync.replicas": "2", "retention.ms": "-1"}
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


@dataclass
class Row:
    """What a scenario showed."""

    name: str
    workers: str
    partitions: int = PARTITIONS  # in the end
    times: list[float] = field(default_factory=list)  # what was measured, in seconds
    slowest_s: float = 0.0  # of all answers with 200, of workers that clients were sent to
    refused: int = 0  # answers that were not 200
    ended: int = 0  # connections that ended without one
    events: int = 0
    seconds: float = 0.0


@dataclass
class Bench:
    """Where the scenarios run."""

    folder: Path
    bootstrap_servers: str
    rounds: int
    is_replicated: bool = False
    rows: list[Row] = field(default_factory=list)

    @asynccontextmanager
    async def group(self, row: Row, count: int, **env: str) -> AsyncIterator[Workers]:
        """Run a group; check it at the end, and store the results."""
        topic = f"events-{uuid.uuid4().hex[:12]}"
        own = {
            "GATEWAY_LOG": "kafka",
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "GATEWAY_TOPIC": topic,
            "GATEWAY_PARTITIONS": str(PARTITIONS),
        }
        workers = Workers(self.folder / topic, own | env, count)
        if self.is_replicated:
            for name, partitions in ((topic, PARTITIONS), (f"{topic}.quarantine", 1)):
                await create_topic(
                    self.bootstrap_servers, name, partitions=partitions, replication_factor=3, configs=SAFE
                )
        began = time.monotonic()
        try:
            await workers.start()
            yield workers
            await workers.repeat()
            committed = await read_kafka(self.bootstrap_servers, topic, row.partitions)
            assert_exactly_once(committed, workers.clients, division=division_of(workers.all[0]))
            row.events, row.seconds = len(committed), time.monotonic() - began
            self.rows.append(row)
            print(line_of(row), flush=True)
        finally:
            await workers.stop()


def note(row: Row, load: Load) -> None:
    """Add the observations of clients."""
    row.slowest_s = load.slowest_s()
    row.refused = len(load.errors())
    row.ended = len(load.refusals()) - row.refused
    why = Counter((said.status, said.text) for said in load.refusals())
    for (status, text), count in why.most_common(5):
        print(f"{row.name}: {count} x {status or 'no answer'}: {text}", file=sys.stderr, flush=True)


async def kill_each(bench: Bench, name: str, **env: str) -> None:
    """kill -9 of each worker in turn."""
    row = Row(name, "3")
    async with bench.group(row, 3, **env) as workers, workers.load() as load:
        for kill in range(bench.rounds):
            victim = workers.all[kill % 3]
            await asyncio.sleep(LOAD_S)
            victim.is_in_use = False
            victim.kill()
            row.times.append(await workers.all_answer(workers.all[(kill + 1) % 3]))
            print(f"{name}: {victim.name}: {row.times[-1]:.2f} s", file=sys.stderr, flush=True)
            await back(workers, victim)
        note(row, load)


async def freeze(bench: Bench) -> None:
    """SIGSTOP of a worker that wakes up long after it has lost everything."""
    row = Row("SIGSTOP for 20 s", "3")
    async with bench.group(row, 3) as workers, workers.load() as load:
        frozen = workers.all[0]
        await asyncio.sleep(LOAD_S)
        frozen.is_in_use = False
        frozen.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            row.times.append(await workers.all_answer(workers.all[1]))
            await asyncio.sleep(max(0.0, began + FREEZE_S - time.monotonic()))
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        frozen.is_in_use = True
        await workers.settle()
        await asyncio.sleep(LOAD_S)
        note(row, load)


async def roll(bench: Bench, name: str) -> None:
    """Restart all workers, one by one, as a rolling update does."""
    row = Row(name, "3")
    async with bench.group(row, 3) as workers, workers.load() as load:
        for worker in workers.all:
            await asyncio.sleep(LOAD_S)
            row.times.append(await leave(worker))
            await back(workers, worker)
        await asyncio.sleep(LOAD_S)
        note(row, load)


async def scale(bench: Bench) -> None:
    """1 -> 4 -> 2 workers."""
    row = Row("1 -> 4 -> 2 workers", "1-4")
    async with bench.group(row, 1) as workers, workers.load() as load:
        await asyncio.sleep(LOAD_S)
        for number in (1, 2, 3):
            worker = workers.new(f"worker-{number}")
            worker.is_in_use = False
            workers.all.append(worker)
            await back(workers, worker)
            await asyncio.sleep(LOAD_S)
        for worker in workers.all[2:]:
            row.times.append(await leave(worker))
            await workers.settle()
            await asyncio.sleep(LOAD_S)
        note(row, load)


async def divide(bench: Bench) -> None:
    """Twice the partitions and back, of a group that serves; each time the longest one without a 200."""
    row = Row("8 to 16 to 8 partitions", "3", 2 * PARTITIONS)
    async with bench.group(row, 3) as workers, workers.load() as load:
        for plan, partitions in enumerate((2 * PARTITIONS, PARTITIONS), 1):
            await asyncio.sleep(LOAD_S)
            begun = time.monotonic()
            arguments = ("reshard", "plan", "--partitions", str(partitions), "--notice", "0", "--force")
            done = await asyncio.to_thread(cli, workers.all[0], *arguments)
            assert done.returncode == 0, done.stderr.decode()
            await until_in_thread(partial(_all_follow, workers, plan))
            await workers.settle()
            await asyncio.sleep(LOAD_S)
            answered = sorted(said.at + said.seconds for said in load.said() if said.status == 200)
            since = [at for at in answered if at >= begun]
            row.times.append(max(after - before for before, after in pairwise(since)))
        note(row, load)
        waits = sorted(said.seconds for said in load.said() if said.status == 200)
        told = [f"p{part} {waits[len(waits) * part // 100]:.3f} s" for part in (50, 90, 99)]
        print(f"{row.name}: of {len(waits):,} answers {', '.join(told)}", file=sys.stderr, flush=True)


def _all_follow(workers: Workers, plan: int) -> bool:
    return all(each.stats()["reshard"]["plan"] == plan for each in workers.all)


async def leave(worker: Worker) -> float:
    """Stop a worker in order; return the duration. Clients send to it until it is not ready."""
    began = time.monotonic()
    worker.process.terminate()
    await until_in_thread(lambda: not (worker.is_running and worker.is_ready()))
    worker.is_in_use = False
    assert await asyncio.to_thread(worker.wait) == 0  # a second signal would end it at once
    return time.monotonic() - began


async def back(workers: Workers, worker: Worker) -> None:
    """Start a worker, and have clients send to it once it is ready."""
    worker.start(wait=False)
    await asyncio.to_thread(worker.wait_until_ready, STARTED_IN_S)
    worker.is_in_use = True
    await workers.settle()


def line_of(row: Row) -> str:
    """Return a row of the table."""
    times = sorted(row.times)
    median = f"{statistics.median(times):.2f}" if times else "-"
    worst = f"{times[-1]:.2f}" if times else "-"
    return (
        f"| {row.name} | {row.workers} | {len(times)} | {median} | {worst} | {row.slowest_s:.2f} |"
        f" {row.refused} | {row.ended} | {row.events:,} | 0 | 0 | {row.seconds:.0f} |"
    )


HEAD = (
    "| what | workers | times | median s | worst s | slowest 200, s | not 200 | no answer | events | lost |"
    " twice | took s |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)

Scenario = Callable[[Bench], Coroutine[Any, Any, None]]

ONE_BROKER: dict[str, Scenario] = {
    "kill": lambda bench: kill_each(bench, "kill -9"),
    "kill-alone": lambda bench: kill_each(bench, "kill -9, no standbys", GATEWAY_STANDBY="false"),
    "freeze": freeze,
    "roll": lambda bench: roll(bench, "rolling restart"),
    "scale": scale,
    "divide": divide,
}
THREE_BROKERS: dict[str, Scenario] = {
    "kill-3": lambda bench: kill_each(bench, "kill -9, three brokers"),
    "roll-3": lambda bench: roll(bench, "rolling restart, three brokers"),
}


def brokers_of(stack: ExitStack, folder: Path, count: int) -> str:
    """Start one broker or three; return the first one's address."""
    first = KafkaBroker(folder / "1", properties=REPLICATED if count == 3 else None)
    for broker in [
        first,
        *(first.joined_by(folder / str(node), node_id=node) for node in range(2, count + 1)),
    ]:
        stack.enter_context(broker)
    return first.bootstrap_servers


def report(rows: Sequence[Row]) -> str:
    """Return the results as Markdown."""
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    machine = f"{os.cpu_count()} cores, {system}"
    return "\n".join(
        [f"{machine}, all on loopback and on the same cores.", "", *HEAD, *map(line_of, rows), ""]
    )


def main() -> None:
    """Run what is named, or everything, and print the table. A broken promise ends it with its assertion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="kills of a scenario")
    parser.add_argument("only", nargs="*", help=", ".join([*ONE_BROKER, *THREE_BROKERS]))
    parser.add_argument("--folder", type=Path, help="keeps logs and data there; new")
    asked = parser.parse_args()
    rows: list[Row] = []
    for count, scenarios in ((1, ONE_BROKER), (3, THREE_BROKERS)):
        wanted = [run for name, run in scenarios.items() if name in asked.only or not asked.only]
        if not wanted:
            continue
        with ExitStack() as stack:
            if asked.folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="group-faults-")))
            else:
                folder = asked.folder / f"{count}-brokers"
            bench = Bench(folder, brokers_of(stack, folder, count), asked.rounds, count > 1, rows)
            for run in wanted:
                asyncio.run(run(bench))
    sys.stdout.write(report(rows))


if __name__ == "__main__":
    main()
