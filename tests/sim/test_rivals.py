"""
Claim: two gateways that both take a log for theirs lose and double nothing, and one of them goes on serving.

Others are drawn with SIM_SEED and SIM_HISTORIES, see tests/sim/seeds.py.
"""

import asyncio
from dataclasses import replace
from random import Random

from dedupe.partition.state import LaneState
from tests.sim.seeds import each_seed
from tests.sim.test_histories import IDS, befall, faults_of, request_of
from tests.sim.world import QUICK, World
from tests.support.sim.faults import SimFaults

ROUNDS = 4
PAUSE_S = 0.01  # longer than a lane waits before it fences again


@each_seed(one_in=10)
async def test_history_of_two_gateways_keeps_every_promise(seed: int) -> None:
    rng = Random(seed)
    faults = replace(faults_of(seed), rival=0.0)  # this one is real
    first = World(faults=faults, times=replace(QUICK, fenced_again_s=rng.choice((0, 60, 60))))
    worlds = [first, first.beside()]
    for world in worlds:
        world.boot()
    for _ in range(ROUNDS):
        sending = [
            asyncio.ensure_future(rng.choice(worlds).send(request_of(first, rng)))
            for _ in range(rng.randint(1, 12))
        ]
        for _ in range(rng.randint(1, 60)):
            await asyncio.sleep(0)
        await befall(first, rng)
        first.note_skips()
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        if rng.random() < 0.5:
            world = rng.choice(worlds)
            await world.crash(lost_updates=rng.choice((0, 1, 4)))
            world.boot()
    first.log.rng.faults = SimFaults()
    await asyncio.sleep(PAUSE_S)
    for number in range(IDS):
        await _deliver_somewhere(worlds, f"fresh-{number}")
        for world in worlds:  # a conflict needs two lanes, which may be different gateways'
            await world.send([world.event(str(number))])

    first.judge_log()
    for world in worlds:
        await world.crash()


async def _deliver_somewhere(worlds: list[World], message_id: str) -> None:
    """Send one event to both gateways by turns until it is answered; one of them must serve it."""
    event = worlds[0].event(message_id)
    for _ in range(100):
        for world in worlds:
            if await world.send([event]):
                return
        await asyncio.sleep(PAUSE_S)
    states = [[lane.state for lane in world.router.all_lanes] for world in worlds if world.router]
    raise AssertionError(f"nobody serves partition {event.partition}: {states}")


async def test_rivals_agree_within_two_fencings_each_that_one_has_the_partition() -> None:
    first = World(times=replace(QUICK, fenced_again_s=60.0))
    second = first.beside()
    for world in (first, second):
        await world.start()
    routers = [world.router for world in (first, second) if world.router]
    for number in range(200):
        for world in (first, second):
            await world.send([first.event(str(number))])
        await asyncio.sleep(PAUSE_S / 10)

    for lanes in zip(*(router.lanes for router in routers), strict=True):
        assert sorted(lane.health.is_lost for lane in lanes) == [False, True]
        assert [lane.state for lane in lanes if not lane.health.is_lost] == [LaneState.ACTIVE]
        assert sum(lane.metrics.fenced for lane in lanes) <= 4
    for number in range(200):
        await _deliver_somewhere([first, second], str(number))
    first.judge_log()
    for world in (first, second):
        await world.crash()
