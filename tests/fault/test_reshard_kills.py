"""
Claim: whoever is killed wherever a plan is, no event is lost or stored twice, and each keeps its receipt.

A cell is a crash point, whom it befalls, and whether the topic grows from 4 to 8 partitions or gets 4 again.
docs/COMMIT.md says what each crash leaves behind. Cells of one group follow each other under load, a fifth of
it copies: RESHARD_SEED draws them, RESHARD_CELLS says how many, or all.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest

from app.settings.model import DEVELOPMENT_SECRET
from dedupe.model.identity import Identity
from tests.fault.conftest import PARTITIONS, LogUnderTest, kafka_log
from tests.support.gateway import NEVER, Crash
from tests.support.http import cli, cli_until, division_of
from tests.support.kafka import KafkaBroker
from tests.support.verdict import (
    assert_at_home,
    assert_exactly_once,
    assert_sessions_whole,
    read_kafka,
)
from tests.support.waiting import PATIENCE_S, until_async, until_in_thread
from tests.support.workers import SHORT, SOURCE, Load, Worker, Workers

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = int(os.environ.get("RESHARD_SEED", "1"))
CELLS = os.environ.get("RESHARD_CELLS", "3")
CELLS_OF_A_GROUP = 4
CLIENTS, DEVICES = 2, 2
NOT_NOW, DONE = b"mend that first", b"nothing to do"
REQUESTS = 30
"""That are answered before a plan, and by its layout."""

GROWTH, SHRINK = "growth", "shrink"
ROLES = ("giver", "taker", "bystander", "pair", "broker")
"""The owner of a partition that gives slots; that of one that gets them, or its standby; the third worker;
the first two at once; the broker, as the giver comes to the step."""
BROKER, COMMAND = "broker", "command"
QUICK = {**SHORT, "dedupe.cluster.lane_manager:NEW_S": 1.0}
STEPS = {
    "seen": "",
    "noted": "",
    "left_off": "",
    "decide": "",
    "decided": "",
    "settled": "",
    "fenced": "settled",
    "restored": "settled",
    "commit": "settled",
}
"""Crash points of a gateway, with those before which they are another round's."""


OF_OWNERS = {"noted", "decide", "decided", "commit"}
"""Steps of the owners of clean partitions."""


class Cell(NamedTuple):
    """What befalls whom during which plan."""

    way: str
    role: str
    step: str
    ending: str = ""
    """Of the plan of a command that was killed: the same command "again", or the gateways "alone"."""

    def __str__(self) -> str:
        return "-".join(filter(None, self))

    @property
    def crash(self) -> Crash:
        return Crash(self.step, 2 if self.step == "added" else 1, STEPS.get(self.step, ""))

    @property
    def partitions(self) -> int:
        return 2 * PARTITIONS if self.way == GROWTH else PARTITIONS


def cells_of(way: str) -> list[Cell]:
    """Return all cells of a way."""
    steps = ["planned", "noted"] if way == GROWTH else ["planned", "marked", "noted"]
    cells = [Cell(way, role, step) for role in ROLES for step in STEPS]
    if way == GROWTH:  # the third of three workers may have quarantine's partition alone
        cells = [cell for cell in cells if cell.role != "bystander" or cell.step not in OF_OWNERS]
    cells += [Cell(way, COMMAND, step, ending) for step in steps for ending in ("again", "alone")]
    return cells if way == SHRINK else [Cell(way, COMMAND, "added", "again"), *cells]


def groups() -> list[list[Cell]]:
    """Return the cells of each group, by turns of growth and of shrinking."""
    rng, wanted = random.Random(SEED), [cells_of(GROWTH), cells_of(SHRINK)]
    if CELLS != "all":
        half, rest = divmod(int(CELLS), 2)
        wanted = [rng.sample(cells, half + rest * (way == 0)) for way, cells in enumerate(wanted)]
    growing, shrinking = wanted
    growing += rng.choices(growing[1:] or growing, k=max(0, len(shrinking) - len(growing)))
    growing.sort(key=lambda cell: cell.step != "added")  # partitions are added once a topic
    count = -(-2 * max(map(len, wanted)) // CELLS_OF_A_GROUP)
    drawn = [zip_longest(growing[n::count], shrinking[n::count]) for n in range(count)]  # growth first
    return [[cell for cell in chain.from_iterable(pairs) if cell is not None] for pairs in drawn]


@pytest.fixture
def log(private_kafka_broker: KafkaBroker) -> LogUnderTest:
    return kafka_log(private_kafka_broker.bootstrap_servers)


@pytest.fixture
async def workers(log: LogUnderTest, tmp_path: Path) -> AsyncIterator[Workers]:
    """Three workers that have shared the lanes out, each of which can be killed at a crash point."""
    workers = Workers(tmp_path, log.env, 3, constants=QUICK)
    try:
        await workers.start(crash=NEVER)
        yield workers
    finally:
        await workers.stop()


@pytest.mark.parametrize("cells", groups(), ids=lambda cells: "+".join(map(str, cells)))
async def test_kill_during_a_plan_keeps_every_promise(
    workers: Workers, log: LogUnderTest, private_kafka_broker: KafkaBroker, cells: Sequence[Cell]
) -> None:
    rng = random.Random(SEED)
    for plan, cell in enumerate(cells, 1):
        async with workers.load(CLIENTS, devices=DEVICES) as load:
            await answered(load, REQUESTS)
            await workers.settle(are_even=False)
            if cell.role == COMMAND:
                await kill_the_command(workers, cell)
            else:
                await kill_the_others(workers, private_kafka_broker, cell, rng)
            await until_in_thread(partial(all_follow, workers, plan))
            await workers.settle(are_even=False)
            await answered(load, REQUESTS)
        await judge(workers, log, private_kafka_broker)
        print(f"held: {cell}")


async def answered(load: Load, count: int) -> None:
    """Wait until so many more requests were answered with 200."""
    before = taken(load)
    await until_async(lambda: taken(load) >= before + count)


def taken(load: Load) -> int:
    return sum(said.status == 200 for said in load.said())


def all_follow(workers: Workers, plan: int) -> bool:
    return all(worker.stats()["reshard"]["plan"] == plan for worker in workers.all)


async def kill_the_command(workers: Workers, cell: Cell) -> None:
    """Have the topic divided by a command that is killed, and perhaps by the same one once more."""
    killed = await asyncio.to_thread(planned, workers, cell, crash=cell.crash)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    if cell.ending == "again":
        done = await asyncio.to_thread(planned, workers, cell)
        assert is_carried_out(done), done.stderr.decode()


async def kill_the_others(workers: Workers, broker: KafkaBroker, cell: Cell, rng: random.Random) -> None:
    """Have the topic divided while workers or the broker are killed, and start them again."""
    while not (victims := await asyncio.to_thread(victims_of, workers, cell, rng)):
        await workers.settle(are_even=False)  # anew: partitions move
    pid = broker.pid if cell.role == BROKER else None
    for victim in victims:
        victim.arm(cell.crash._replace(pid=pid))
    dividing = asyncio.create_task(asyncio.to_thread(planned, workers, cell))

    def is_refused() -> bool:
        return dividing.done() and not is_carried_out(dividing.result())

    if cell.role == BROKER:
        await until_async(lambda: not broker.is_running or is_refused())
        if not broker.is_running:
            await asyncio.to_thread(broker.start)
    else:
        await until_async(lambda: not any(victim.is_running for victim in victims) or is_refused())
        ended = [victim for victim in victims if not victim.is_running]
        for victim in ended:
            assert victim.wait() == -signal.SIGKILL
            victim.start(crash=NEVER, wait=False)
        for victim in ended:
            await asyncio.to_thread(victim.wait_until_ready)
    done = await dividing
    assert is_carried_out(done), done.stderr.decode()


def is_carried_out(done: CompletedProcess[bytes]) -> bool:
    """Whether a command has ended well; the same one that is called again may find nothing to do."""
    return done.returncode == 0 or DONE in done.stderr


def planned(workers: Workers, cell: Cell, *, crash: Crash | None = None) -> CompletedProcess[bytes]:
    """
    Run the command; again while gateways cannot follow a plan, or the broker that is killed does not answer.

    A standby may have fallen behind for a moment.
    """
    asked, deadline = workers.all[0], time.monotonic() + PATIENCE_S
    arguments = ["reshard", "plan", "--partitions", str(cell.partitions), "--notice", "0"]
    arguments += ["--url", asked.admin_url]
    if cell.role == COMMAND and cell.step == "noted":
        arguments.append("--now")
    run = partial(cli, asked) if crash is None else partial(cli_until, asked, crash)
    while True:
        done = run(*arguments)
        is_passing = NOT_NOW in done.stderr or (cell.role == BROKER and done.returncode == 1)
        if not is_passing or time.monotonic() > deadline:
            return done
        if NOT_NOW in done.stderr:
            print(f"{cell}: {done.stderr.decode().strip()}")


def victims_of(workers: Workers, cell: Cell, rng: random.Random) -> list[Worker]:
    """Return who has a role in a move that is drawn, and comes to the crash point; none if nobody does."""
    states = {worker.name: worker.states() for worker in workers.all}

    def who(partition: int, state: str) -> str:
        return next((name for name, lanes in states.items() if lanes[partition] == state), "")

    for lower in rng.sample(range(PARTITIONS), PARTITIONS):
        source, target = (lower, lower) if cell.way == GROWTH else (lower + PARTITIONS, lower)
        giver, taker = who(source, "active"), who(target, "active")
        if taker == giver:
            taker = who(target, "following")  # whose standby has the heir, too
        others = states.keys() - {giver, taker}
        casting = {"giver": {giver}, "taker": {taker}, "bystander": others, "pair": {giver, taker}}
        names = casting.get(cell.role, {giver})
        are_owners = all("active" in states.get(name, [])[:PARTITIONS] for name in names)
        if len(others) == 1 and (are_owners or cell.step not in OF_OWNERS):
            return [worker for worker in workers.all if worker.name in names]
    return []


async def judge(workers: Workers, log: LogUnderTest, broker: KafkaBroker) -> None:
    """Nothing is lost or doubled, every worker gives the same receipts, and each record is at home."""
    await workers.repeat()
    topic, identity = log.env["GATEWAY_TOPIC"], Identity(DEVELOPMENT_SECRET.encode())
    committed = await read_kafka(broker.bootstrap_servers, topic, 2 * PARTITIONS)
    division = await asyncio.to_thread(division_of, workers.all[0])
    assert {record.partition for record in committed} == set(range(2 * PARTITIONS))
    assert_exactly_once(committed, workers.clients, division=division)
    assert_sessions_whole([record for record in committed if record.session])
    assert_at_home(committed, PARTITIONS, lambda name: identity.message_key(SOURCE, name), division=division)
