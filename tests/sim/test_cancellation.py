"""Claim: a lane survives a cancellation at any of its awaits, or ends by it, and keeps every promise."""

import asyncio

import pytest

from tests.sim.world import World
from tests.support.cancellation import cancelled_at

EVENTS = 12
AWAITS = 90  # recovery and the first commits have fewer


async def send_all(world: World) -> None:
    for number in range(EVENTS):
        await world.deliver([world.event(str(number))])


@pytest.mark.parametrize("number", range(1, AWAITS))
async def test_cancellation_of_a_library_at_any_await_costs_nothing(number: int) -> None:
    world = World()
    router = world.router = world.build()
    running = [asyncio.ensure_future(lane.run()) for lane in router.all_lanes[1:]]
    running.append(asyncio.ensure_future(cancelled_at(number, router.lanes[0].run())))

    async with asyncio.timeout(60):
        await send_all(world)
        await send_all(world)

    assert all(lane.is_running for lane in router.all_lanes)
    world.judge()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("steps", range(AWAITS))
async def test_lane_that_is_ended_at_any_step_leaves_a_log_that_another_process_continues(steps: int) -> None:
    world = World()
    world.boot()
    sending = asyncio.ensure_future(send_all(world))
    for _ in range(steps):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await world.crash()

    await world.start()
    async with asyncio.timeout(60):
        await send_all(world)

    world.judge()
