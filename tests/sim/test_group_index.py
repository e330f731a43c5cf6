"""Claim: a lane whose owner lacks its index is served by its standby within four seconds."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from dedupe.model.errors import IndexUnavailableError
from dedupe.model.types import Offset
from dedupe.partition.record_reader import RecordReader
from dedupe.storage.index import IndexUpdate
from tests.sim.group_world import GroupWorld, Worker
from tests.sim.test_group import NAMES, begin, owner_and_follower
from tests.sim.world import World
from tests.support.sim.memory_index import MemoryIndex

CLAIMED_S = 4.0
REBUILD_S = 15.0


def slow_down_rebuilds(
    worker: Worker | World, monkeypatch: pytest.MonkeyPatch, seconds: float = REBUILD_S
) -> None:
    """Let each read of a partition from its start take a while at one worker."""
    assert worker.router is not None
    readers = {lane.recovery._reader for lane in worker.router.all_lanes}
    read = RecordReader.read

    async def read_slowly(
        reader: RecordReader, start: Offset, end: Offset, **more: int
    ) -> AsyncGenerator[object, None]:
        if reader in readers and start == 0 and not more:
            await asyncio.sleep(seconds)
        async for records in read(reader, start, end, **more):
            yield records

    monkeypatch.setattr(RecordReader, "read", read_slowly)


async def claimed_within(group: GroupWorld, owner: Worker, follower: Worker) -> None:
    """Require that the standby serves lane 0 in time, and that the group settles once the owner is whole."""
    assert await group.until(lambda: group.owner_of(0) is follower) < CLAIMED_S
    await asyncio.sleep(10)
    assert group.slowest_s < 2 * CLAIMED_S


@pytest.mark.regression("A partition whose owner could not write its index moved after 20 s.")
async def test_lane_of_an_owner_whose_disk_fails_is_claimed() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        owner.world.disk.has_room = False
        await claimed_within(group, owner, follower)
        owner.world.disk.has_room = True
        await group.settle()
        await group.judge()


async def test_lane_of_an_owner_whose_index_takes_no_writes_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        disk, apply = owner.world.disk, MemoryIndex.apply

        def fails(index: MemoryIndex, update: IndexUpdate) -> None:
            if index._store is disk:
                raise IndexUnavailableError("simulated: a read-only file system")
            apply(index, update)

        with monkeypatch.context() as broken:
            broken.setattr(MemoryIndex, "apply", fails)
            await claimed_within(group, owner, follower)
            assert not owner.owned & {0}
        await group.settle()
        await group.judge()


async def test_lane_whose_owner_rebuilds_its_index_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        slow_down_rebuilds(owner, monkeypatch)
        owner.world.disk.damage(owner.router.lanes[0].recovery.identity)
        await claimed_within(group, owner, follower)
        assert owner.router.lanes[0].metrics.rebuilds == 1
        await group.settle()
        await group.judge()


async def test_lane_that_finds_its_index_damaged_says_so_until_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    router = await world.start()
    await world.deliver([world.event("one")])
    lane = next(
        each.partition
        for each in router.lanes
        if each.open_index and each.open_index.index.state.last_offset >= 0
    )
    await world.crash()
    world.disk.damage(world.index_identity(lane))
    restarted = world.boot()
    slow_down_rebuilds(world, monkeypatch)
    await asyncio.sleep(REBUILD_S / 2)
    assert restarted.lanes[lane].without_index_since is not None
    await world.wait_until_active()
    assert restarted.lanes[lane].without_index_since is None
    await world.crash()


async def test_lane_whose_index_is_whole_again_soon_stays() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, _ = owner_and_follower(group)
        claims = sum(worker.manager.claims for worker in group.alive)
        owner.world.disk.has_room = False
        await asyncio.sleep(0.75)
        owner.world.disk.has_room = True
        await asyncio.sleep(20)
        assert sum(worker.manager.claims for worker in group.alive) == claims
        assert 0 in owner.owned
        await group.judge()


async def test_owner_of_an_earlier_version_whose_index_fails_is_claimed_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dedupe.cluster.lane_manager.without_index", lambda *_: frozenset())
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        owner.world.disk.has_room = False
        assert CLAIMED_S < await group.until(lambda: group.owner_of(0) is follower) < 21
        owner.world.disk.has_room = True
        await group.settle()
        await group.judge()


async def test_indexes_that_fail_everywhere_move_no_lane() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        moves = [worker.manager.moves for worker in group.alive]
        for worker in group.alive:
            worker.world.disk.has_room = False
        await asyncio.sleep(30)
        for worker in group.alive:
            worker.world.disk.has_room = True
        await group.settle()
        assert sum(worker.manager.moves for worker in group.alive) <= sum(moves) + 3
        await group.judge()
