"""Claim: a worker that does less than another one is not ready, and an outage of all takes nobody out."""

import asyncio

import pytest

from tests.sim.group_world import GroupWorld
from tests.sim.test_group import NAMES, begin, owner_and_follower
from tests.support.sim.sim_log import LEADER


@pytest.mark.regression("A worker that could not answer a single batch said that it was ready.")
async def test_worker_that_does_not_reach_an_owner_is_not_ready_while_another_does() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        one, third, other = (group.owner_of(lane) for lane in range(3))
        assert one is not None
        assert other is not None
        assert third not in (one, other)
        group.net.cut(one.name, other.name)  # both reach the third one, which owns a clean lane
        await asyncio.sleep(10)

        assert sorted((one.is_open, other.is_open)) == [False, True]
        for _ in range(20):
            await asyncio.sleep(1)
            assert [worker.is_open for worker in group.alive].count(False) == 1
        assert group.slowest_s < 10
        group.net.mend(one.name, other.name)
        assert await group.until(lambda: all(worker.is_open for worker in group.alive)) < 12
        await group.settle()
        await group.judge()


@pytest.mark.regression("A path cut in one direction left a worker ready that refused all its clients.")
async def test_path_one_way_takes_one_worker_out() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        group.net.hold(owner.name, follower.name)
        await asyncio.sleep(10)
        assert [worker.is_open for worker in group.alive].count(False) == 1
        group.net.release(owner.name, follower.name)
        await group.settle()
        await group.judge()


async def test_log_that_answers_nobody_takes_nobody_out() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        for number in range(6):
            group.stream(f"z{number}")
        for worker in group.alive:
            worker.world.connection.is_available = False
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert all(worker.is_open for worker in group.alive)
        assert not any(worker.owned & {0, 1} for worker in group.alive)
        for worker in group.alive:
            worker.world.connection.is_available = True
        await group.settle()
        await group.judge()


async def test_worker_that_cannot_append_and_forwards_stays_ready() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, _ = owner_and_follower(group)
        owner.world.connection.drops_large.add(LEADER)
        await asyncio.sleep(10)
        refusals = group.refusals
        for _ in range(20):
            await asyncio.sleep(1)
            assert owner.is_open
        assert group.refusals == refusals
        owner.world.connection.drops_large.clear()
        await group.settle()
        await group.judge()


async def test_lanes_that_move_take_nobody_out() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, _ = owner_and_follower(group)
        await owner.kill()
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert all(worker.is_open for worker in group.alive)
        await group.settle()
        await group.judge()
