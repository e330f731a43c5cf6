"""Claim: a worker whose disk is low costs the others seconds, and its lanes go to whole standbys only."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dedupe.cluster.append_watch import PROVED_S
from dedupe.cluster.disk_watch import AGAIN_S, LASTS_S, ROOM_S
from dedupe.cluster.lane_moves import MOVE_AGAIN_S
from tests.sim.group_world import GroupWorld, Worker
from tests.sim.test_group import NAMES, begin, owner_and_follower
from tests.sim.test_group_appends import moves

MOVED_S = LASTS_S + 1.5
"""For what sees it, the question to the standbys, and their claims."""


@pytest.fixture
async def group() -> AsyncIterator[GroupWorld]:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        yield group


def kept(group: GroupWorld, worker: Worker) -> set[int]:
    """Return the lanes that others must have while a worker has no room."""
    return set(range(len(worker.router.all_lanes))) - group.run_beside(worker)


async def is_stored(group: GroupWorld, by: list[str]) -> None:
    """Require that events of all partitions are stored at once by these workers."""
    events = [group.world.event(f"stored {asyncio.get_running_loop().time()} {n}") for n in range(6)]
    assert len({event.partition for event in events}) > 1
    assert await group.deliver(events, by=by) < 1


@pytest.mark.regression("A worker whose disk was low kept its partitions, and refused their events for all.")
async def test_worker_whose_disk_is_low_gives_its_lanes_to_standbys_within_seconds(group: GroupWorld) -> None:
    owner, follower = owner_and_follower(group)
    owner.has_disk_room = False

    assert await group.until(lambda: group.owner_of(0) is follower) < MOVED_S
    assert await group.until(lambda: not kept(group, owner)) < MOVED_S
    await is_stored(group, [worker.name for worker in group.alive if worker is not owner])
    assert not owner.is_open
    await asyncio.sleep(30)
    assert not owner.owned
    assert not owner.followed, "it has no room for that either"
    assert group.slowest_s < 4.5

    before = moves(group)
    owner.has_disk_room = True
    await group.let_pass(ROOM_S - 5)
    assert not owner.owned
    assert moves(group) == before
    assert await group.until(lambda: bool(owner.owned)) < 30
    await group.settle()
    await group.judge()


async def test_disks_that_are_low_on_all_workers_move_no_lane(group: GroupWorld) -> None:
    before = moves(group)
    for worker in group.alive:
        worker.has_disk_room = False
    await asyncio.sleep(30)
    assert moves(group) == before
    assert not await group.alive[0].send([group.world.event("refused")])
    for worker in group.alive:
        worker.has_disk_room = True
    await group.settle()
    assert moves(group) == before
    await group.judge()


async def test_lane_whose_standby_is_low_too_stays_until_that_one_has_room(group: GroupWorld) -> None:
    owner, follower = owner_and_follower(group)
    owner.has_disk_room = follower.has_disk_room = False
    await asyncio.sleep(1)
    lanes = {n for n, name in enumerate(owner.manager.assignment.followers) if name == follower.name}
    assert not owner.manager.hand_overs.disk.given_up & lanes
    follower.has_disk_room = True
    await group.until(lambda: not kept(group, owner), AGAIN_S + 30)
    owner.has_disk_room = True
    await group.judge()


async def test_standby_that_is_behind_takes_nothing() -> None:
    async with GroupWorld("a", "b") as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        for lane in follower.router.all_lanes:
            lane.follower.is_caught_up = False
        follower.world.connection.is_available = False
        owner.has_disk_room = False
        await asyncio.sleep(10)
        assert not owner.manager.hand_overs.disk.given_up
        follower.world.connection.is_available = True
        await group.until(lambda: not kept(group, owner))
        owner.has_disk_room = True
        await group.judge()


async def test_lane_is_given_up_once_in_ten_minutes() -> None:
    async with GroupWorld("a", "b") as group:
        await group.start()
        for name in ("a", "b", "a", "b"):
            group[name].has_disk_room = False
            await group.let_pass(60)
            group[name].has_disk_room = True
            await asyncio.sleep(30)
        given_up_s = [at for lane, at, _ in group.given_up if lane == 0]
        assert len(given_up_s) == 1
        await group.settle(ROOM_S + 60)
        await group.judge()


async def test_last_worker_keeps_its_lanes_and_serves_once_it_has_room() -> None:
    async with GroupWorld("a") as group:
        await begin(group)
        owned = group["a"].owned
        group["a"].has_disk_room = False
        await asyncio.sleep(20)
        assert group["a"].owned == owned
        group["a"].has_disk_room = True
        await is_stored(group, ["a"])
        await group.judge()


async def test_worker_that_starts_with_a_low_disk_gets_no_lane() -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start("a", "b")
        group["c"].has_disk_room = False
        before = moves(group)
        group["c"].start()
        await asyncio.sleep(40)
        assert moves(group) == before
        assert not group["c"].owned
        assert not group["c"].followed
        group["c"].has_disk_room = True
        assert await group.until(lambda: bool(group["c"].owned), PROVED_S + 60) > PROVED_S - 1
        await group.settle()
        await group.judge()


async def test_group_of_low_disks_serves_all_lanes_once_one_has_room() -> None:
    async with GroupWorld("a", "b") as group:
        for worker in group.workers.values():
            worker.has_disk_room = False
            worker.start()
        await asyncio.sleep(40)
        rebalances = group.coordinator.rebalances
        await group.let_pass(120)
        assert group.coordinator.rebalances - rebalances <= 2, "they ask for the same again and again"
        group["b"].has_disk_room = True
        await group.until(lambda: len(group["b"].owned) == len(group["b"].router.all_lanes), MOVE_AGAIN_S)
        await is_stored(group, ["b"])
        group["a"].has_disk_room = True
        await group.settle(ROOM_S + 60)
        await group.judge()
