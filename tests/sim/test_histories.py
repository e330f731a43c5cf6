"""
Claim: whatever the log does to appends, fences and reads, and wherever processes crash, nothing
acknowledged is lost, nothing is committed twice, and every retry gets the same receipt.

A failing history is repeated by its seed: `pytest tests/sim/test_histories.py -k "seed-17"`.
"""

import asyncio
from random import Random

import pytest

from dedupe.sim.sim_log import SimFaults
from dedupe.types import Event
from tests.sim.world import CLEAN, World

HISTORIES = 150
ROUNDS = 6
IDS = 60
LAST_REQUESTS = 30  # in the process that is judged in the end, so that its counters see faults too


def faults_of(seed: int) -> SimFaults:
    """Draw which faults a history has, and how many: some have only one kind."""
    dice = Random(seed)
    names = ("unavailable", "abort", "lose_reply", "delay_commit", "slow")
    chosen = {name: dice.choice((0.02, 0.1, 0.3)) for name in names if dice.random() < 0.5}
    return SimFaults(seed=seed, **chosen)


@pytest.mark.parametrize("seed", range(HISTORIES), ids=lambda seed: f"seed-{seed}")
async def test_history_keeps_every_promise(seed: int) -> None:
    dice = Random(seed)
    world = World(faults=faults_of(seed))
    for _ in range(ROUNDS):
        world.boot()
        await world.wait_until_active()
        sending = [
            asyncio.ensure_future(world.send(_request(world, dice))) for _ in range(dice.randint(1, 12))
        ]
        for _ in range(dice.randint(1, 60)):
            await asyncio.sleep(0)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await world.crash(lost_updates=dice.choice((0, 0, 1, 4)))
        _hurt_disk(world, dice)

    world.boot()
    await world.wait_until_active()
    for _ in range(LAST_REQUESTS):
        await world.send(_request(world, dice))
    world.log.dice.faults = SimFaults()
    await world.wait_until_active()
    for number in range(IDS):
        await world.deliver([world.event(str(number))])
    world.judge()


def _request(world: World, dice: Random) -> list[Event]:
    """Some events of a small set of ids: copies within and across requests, and a few conflicts."""
    return [
        world.event(str(dice.randrange(IDS)), content="" if dice.random() < 0.95 else "other")
        for _ in range(dice.randint(1, 10))
    ]


def _hurt_disk(world: World, dice: Random) -> None:
    """Lose the index of a lane now and then."""
    if dice.random() < 0.2:
        world.disk.discard(world.index_identity(dice.randrange(CLEAN.partitions)))
