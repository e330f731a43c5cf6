"""
Claim: workers that go on after a plan serve at once what they had, before the group has met, and leave nobody
whose requests are under way.
"""

import asyncio

import pytest

from app.group import GroupBefore
from tests.sim.group_world import LANES, GroupWorld

PAUSE_S = 0.5
"""Of all ids, from the start of the next round on, in virtual time; its part of ADR 0049's second."""


def owners_in(group: GroupWorld) -> list[str]:
    return [owner.name for owner in map(group.owner_of, range(LANES)) if owner is not None]


async def go_on(group: GroupWorld, *names: str) -> None:
    """End the rounds of these workers, whose next ones know how lanes were assigned."""
    for name in names:
        worker = group[name]
        lanes = [(lane.topic, lane.partition) for lane in worker.manager.lanes]
        worker.before = GroupBefore(worker.manager.assignment, lanes, worker.membership.place)
    for name in names:
        await group[name].kill()
    for name in names:
        group[name].start()


async def test_lanes_are_served_before_the_group_has_met() -> None:
    async with GroupWorld("a", "b", "c") as group:
        await group.start()
        before = owners_in(group)
        group.coordinator.is_up = False

        await go_on(group, "a", "b", "c")
        took = await group.until(lambda: len(group.owned) == LANES)

        assert took <= PAUSE_S
        assert owners_in(group) == before
        group.coordinator.is_up = True
        await group.settle()
        assert owners_in(group) == before, "lanes have moved while clients waited"
        assert {worker.manager.moves for worker in group.alive} == {0}


async def test_lane_whose_owner_does_not_come_back_is_served_by_another() -> None:
    async with GroupWorld("a", "b", "c") as group:
        await group.start()

        await go_on(group, "b", "c")
        await group["a"].kill()

        await group.until(lambda: len(group.owned) == LANES)
        await group.judge()


async def test_worker_waits_until_nobody_needs_its_lanes() -> None:
    async with GroupWorld("a", "b") as group:
        await group.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = asyncio.ensure_future(group["a"].manager.directory.pause(2.0))
        await asyncio.sleep(1.0)
        assert not first.done()

        await group["b"].manager.directory.pause(2.0)
        await first
        assert loop.time() - began < 1.5

        group["b"].manager.directory.is_paused = False
        group["b"].manager.directory.announce()
        await asyncio.sleep(0.5)
        began = loop.time()
        await group["a"].manager.directory.pause(2.0)
        assert loop.time() - began >= 2.0


@pytest.mark.regression(
    "A worker waited 0.5 s for another one that had gone on with a plan before it could say so."
)
async def test_worker_does_not_wait_for_one_whose_last_word_is_lost_with_its_connection() -> None:
    async with GroupWorld("a", "b") as group:
        await group.start()
        await asyncio.sleep(1.0)  # a link that has lasted is not down while it is replaced
        loop = asyncio.get_running_loop()
        began = loop.time()
        pausing = asyncio.ensure_future(group["a"].manager.directory.pause(2.0))
        await asyncio.sleep(0.05)

        group.net.bound.add("b")  # its next round accepts connections again
        del group.net.listeners["b"]
        group.net.reset("a", "b")

        await pausing
        assert loop.time() - began < 0.1
