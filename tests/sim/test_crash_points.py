"""Claim: on the simulated log, a crash right after each commit step keeps every promise, at every batch."""

import asyncio

import pytest

from tests.sim.crashes import crash_at
from tests.sim.world import World

STEPS = ("take", "lookup", "admit", "append", "commit", "apply", "answer")


@pytest.mark.parametrize("lost_updates", [0, 1, 3])
@pytest.mark.parametrize("hits", [1, 2, 5])
@pytest.mark.parametrize("step", STEPS)
async def test_crash_right_after_step_keeps_every_promise(step: str, hits: int, lost_updates: int) -> None:
    world = World()
    requests = [[world.event(f"{n}-{i}") for i in range(5)] for n in range(12)]
    world.boot(crash_at(step, hits))
    await world.wait_until_active()
    sending = [asyncio.ensure_future(world.send(events)) for events in requests]
    while not world.has_crashed:
        await asyncio.sleep(0)
    answered = [task.result() for task in sending if task.done()]
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    await world.crash(lost_updates=lost_updates)

    world.boot()
    await world.wait_until_active()
    for events in requests:
        await world.deliver(events)
        await world.deliver(list(reversed(events)))
    world.judge()
    assert len(world.told) == sum(map(len, requests))
    assert len(answered) < len(requests)
