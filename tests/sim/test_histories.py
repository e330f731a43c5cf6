"""
Claim: whatever befalls log, disk, clock and processes, nothing acknowledged is lost, nothing is committed
twice, and every retry gets the same receipt.

A failing history is repeated by its seed: `pytest tests/sim/test_histories.py -k "seed-17"`. Others are
drawn with SIM_SEED (the first seed) and SIM_HISTORIES (how many).
"""

import asyncio
import os
from random import Random

import pytest

from dedupe.sim.sim_log import SimFaults
from dedupe.types import Event
from dedupe.window import WindowPolicy
from tests.sim.world import CLEAN, World

FIRST_SEED = int(os.environ.get("SIM_SEED", "0"))
HISTORIES = int(os.environ.get("SIM_HISTORIES", "1000"))
ROUNDS = 6
IDS = 60
LAST_REQUESTS = 30  # in the process that is judged in the end, so that its counters see faults too

DAY_MS = 86_400_000
POLICIES = [
    WindowPolicy(window_ms=7 * DAY_MS, keys_max=1_000_000),
    WindowPolicy(window_ms=6 * DAY_MS, keys_max=1_100_000),
    WindowPolicy(window_ms=8 * DAY_MS, keys_max=900_000),
]
"""All remember everything that happens within a history."""


def faults_of(seed: int) -> SimFaults:
    """Draw which faults a history has, and how many: some have only one kind."""
    dice = Random(seed)
    names = (
        "unavailable",
        "abort",
        "lose_reply",
        "delay_commit",
        "delay_marker",
        "leak_cancel",
        "rival",
        "slow",
    )
    chosen = {name: dice.choice((0.02, 0.05, 0.15)) for name in names if dice.random() < 0.4}
    return SimFaults(seed=seed, **chosen)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + HISTORIES), ids=lambda seed: f"seed-{seed}")
async def test_history_keeps_every_promise(seed: int) -> None:
    dice = Random(seed)
    world = World(faults=faults_of(seed))
    for _ in range(ROUNDS):
        world.boot()
        await world.wait_until_active()
        sending = [
            asyncio.ensure_future(world.send(request_of(world, dice))) for _ in range(dice.randint(1, 12))
        ]
        for _ in range(dice.randint(1, 60)):
            await asyncio.sleep(0)
        await befall(world, dice)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await world.crash(lost_updates=dice.choice((0, 0, 1, 4)))
        _befall_stopped(world, dice)

    world.boot()
    await world.wait_until_active()
    for _ in range(LAST_REQUESTS):
        await world.send(request_of(world, dice))
    world.log.dice.faults = SimFaults()
    await world.wait_until_active()
    for number in range(IDS):
        await world.deliver([world.event(str(number))])
    world.judge()


def request_of(world: World, dice: Random) -> list[Event]:
    """Some events of a small set of ids: copies within and across requests, and a few conflicts."""
    return [
        world.event(str(dice.randrange(IDS)), content="" if dice.random() < 0.95 else "other")
        for _ in range(dice.randint(1, 10))
    ]


async def befall(world: World, dice: Random) -> None:
    """Let something happen to a running process, now and then."""
    world.clock.ms += dice.choice((0, 1_000, 40_000))
    if dice.random() < 0.1:
        world.disk.has_room = False
        for _ in range(20):
            await asyncio.sleep(0)
        world.disk.has_room = True
    if dice.random() < 0.1:
        partition = dice.randrange(CLEAN.partitions)
        if world.log.partition(CLEAN.topic, partition).open is None:
            world.intrude(partition)


def _befall_stopped(world: World, dice: Random) -> None:
    """Let something happen while no process runs, now and then."""
    world.clock.ms += dice.choice((-3_600_000, 0, 0, 0, 3_600_000))
    world.policy = dice.choice([world.policy, world.policy, *POLICIES])
    partition = dice.randrange(CLEAN.partitions)
    if dice.random() < 0.2:
        world.disk.discard(world.index_identity(partition))
    if dice.random() < 0.1:
        world.log.forget_notes()
    world.note_skips()
    if dice.random() < 0.1:
        end = world.log.partition(CLEAN.topic, partition).end
        world.trim(partition, dice.randrange(end + 1))
