"""Claim: a worker that commits far slower than the others hands its lanes over, and nothing else makes it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dedupe.cluster import slow_watch
from tests.sim.group_world import GroupWorld, Worker
from tests.sim.test_group import NAMES, begin, owner_and_follower
from tests.sim.test_group_appends import moves
from tests.support.sim.sim_log import LEADER

SLOW_S = 1.8
GAP_S = 10.0
"""The longest time that a client that goes to any worker may be without an answer."""


async def slow_down(group: GroupWorld, seconds: float = SLOW_S) -> tuple[Worker, Worker]:
    """Make the path of a lane's owner to the log slow; return owner and follower."""
    owner, follower = owner_and_follower(group)
    owner.world.connection.latency_s[LEADER] = seconds
    return owner, follower


@pytest.fixture
async def group() -> AsyncIterator[GroupWorld]:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        for number in range(6):
            group.stream(f"z{number}")
        await asyncio.sleep(5)
        yield group


async def test_slow_owner_hands_all_its_lanes_over_within_forty_seconds(group: GroupWorld) -> None:
    owner, follower = await slow_down(group)
    took_s = await group.until(lambda: group.owner_of(0) is follower)

    assert slow_watch.LASTS_S < took_s < 40
    assert await group.until(lambda: not owner.owned) < 10
    assert owner.manager.slow.is_slow
    assert group.slowest_s < GAP_S
    assert await group.settle() < 5, "the others need it for nothing"
    group.slowest_s = 0
    await asyncio.sleep(20)
    assert group.slowest_s < 0.5
    assert not owner.owned

    owner.world.connection.latency_s.clear()
    await asyncio.sleep(slow_watch.PROVED_S - 10)
    assert not owner.owned, "not proved yet"
    assert await group.until(lambda: bool(owner.owned)) < 30
    assert not owner.manager.slow.is_slow
    await group.settle()
    await group.judge()
