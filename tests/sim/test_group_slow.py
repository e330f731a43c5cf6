"""Claim: a worker that commits far slower than the others hands its lanes over, and nothing else makes it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dedupe.cluster import slow_watch
from dedupe.cluster.append_watch import PROVED_S
from dedupe.cluster.codec import STANDBY
from dedupe.model.errors import RetriableError
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
    assert owner.manager.hand_overs.slow.is_slow
    assert group.slowest_s < GAP_S
    assert await group.settle() < 5, "the others need it for nothing"
    group.slowest_s = 0
    await asyncio.sleep(20)
    assert group.slowest_s < 0.5
    assert not owner.owned

    owner.world.connection.latency_s.clear()
    await group.let_pass(PROVED_S - 10)
    assert not owner.owned, "not proved yet"
    assert await group.until(lambda: bool(owner.owned)) < 30
    assert not owner.manager.hand_overs.slow.is_slow
    await group.settle()
    await group.judge()


async def test_owner_that_is_too_slow_to_connect_anew_hands_its_lanes_over(group: GroupWorld) -> None:
    owner, follower = await slow_down(group)

    async def probe() -> None:
        await asyncio.sleep(2.5)
        raise RetriableError("simulated: no answer to a connection")

    for lane in owner.router.all_lanes:
        lane.log.probe = probe  # type: ignore[method-assign]
    assert await group.until(lambda: group.owner_of(0) is follower) < 40
    await group.let_pass(2 * PROVED_S)
    assert not owner.owned
    await group.judge()


async def stays(group: GroupWorld, seconds: float = 90.0) -> None:
    """Require that no lane moves for so long, nor afterwards."""
    before = moves(group)
    await asyncio.sleep(seconds)
    assert moves(group) == before
    for worker in group.alive:
        worker.world.connection.latency_s.clear()
    await group.settle()
    assert moves(group) == before
    await group.judge()


async def test_owner_that_is_slow_for_a_moment_keeps_its_lanes(group: GroupWorld) -> None:
    owner, _ = await slow_down(group)
    asyncio.get_running_loop().call_later(20, owner.world.connection.latency_s.clear)
    await stays(group)


async def test_owner_below_half_a_second_keeps_its_lanes(group: GroupWorld) -> None:
    await slow_down(group, 0.4)
    await stays(group)


async def test_log_that_is_slow_for_all_moves_no_lane(group: GroupWorld) -> None:
    for worker in group.alive:
        worker.world.connection.latency_s[LEADER] = SLOW_S
    await stays(group)


async def test_owner_that_is_not_ten_times_slower_is_not_called_slow(group: GroupWorld) -> None:
    for worker in group.alive:
        worker.world.connection.latency_s[LEADER] = 0.25
    owner, _ = await slow_down(group)
    await asyncio.sleep(60)
    assert not owner.manager.hand_overs.slow.is_slow
    await stays(group)


async def test_slow_replicas_move_no_lane(group: GroupWorld) -> None:
    owner, _ = owner_and_follower(group)
    lane = owner.router.all_lanes[0]
    partition = group.world.log.partition(lane.topic, lane.partition)
    partition.replicas_s = SLOW_S
    asyncio.get_running_loop().call_later(89, setattr, partition, "replicas_s", 0.0)
    await stays(group)


async def test_quota_moves_no_lane(group: GroupWorld) -> None:
    owner, _ = await slow_down(group)
    log = owner.router.all_lanes[0].log

    async def throttle() -> None:
        while True:
            log.throttled_s += 0.3  # type: ignore[misc]
            await asyncio.sleep(0.5)

    throttling = asyncio.ensure_future(throttle())
    await stays(group)
    throttling.cancel()


async def test_standby_that_is_slow_too_takes_nothing(group: GroupWorld) -> None:
    owner, follower = owner_and_follower(group)
    lane = owner.router.all_lanes[0]
    group.world.connection.leaders[lane.topic, lane.partition] = "another"
    owner.world.connection.latency_s["another"] = SLOW_S
    follower.world.connection.latency_s["another"] = 0.3
    await stays(group)


async def test_standby_of_an_earlier_version_takes_nothing(group: GroupWorld) -> None:
    _, follower = await slow_down(group)
    del follower.handler.requests[STANDBY]
    await stays(group)


async def test_standby_is_who_has_followed_and_is_quick(group: GroupWorld) -> None:
    _, follower = owner_and_follower(group)
    followed, slow = sorted(follower.followed), follower.manager.hand_overs.slow
    assert await slow.stands_by(followed, 0) is not None
    assert await slow.stands_by([*followed, *follower.owned], 0) is None
    follower.world.connection.drops_large.add(LEADER)
    assert await slow.stands_by(followed, 0) is None
    follower.world.connection.is_available = False
    follower.world.connection.drops_large.clear()
    assert await slow.stands_by(followed, 0) is None
    follower.world.connection.is_available = True
    await group.settle()
    await group.judge()


async def test_without_standbys_no_lane_moves() -> None:
    async with GroupWorld(*NAMES, standbys=False) as group:
        await begin(group)
        owner = group.owner_of(0)
        assert owner is not None
        owner.world.connection.latency_s[LEADER] = SLOW_S
        await stays(group)


async def test_of_two_workers_the_quick_one_takes_all_lanes_and_keeps_them() -> None:
    async with GroupWorld("a", "b") as group:
        await begin(group)
        owner, follower = await slow_down(group)
        assert await group.until(lambda: len(follower.owned) == len(owner.router.all_lanes)) < 45
        follower.world.connection.latency_s[LEADER] = SLOW_S
        await asyncio.sleep(90)
        assert not follower.manager.hand_overs.slow.handed_over
        for worker in group.alive:
            worker.world.connection.latency_s.clear()
        await group.settle(2 * PROVED_S)
        await group.judge()


async def test_last_worker_keeps_its_lanes() -> None:
    async with GroupWorld("a") as group:
        await begin(group)
        group["a"].world.connection.latency_s[LEADER] = SLOW_S
        await stays(group)


async def test_worker_that_is_slow_at_one_of_two_leaders_hands_its_lanes_over(group: GroupWorld) -> None:
    owner, follower = owner_and_follower(group)
    lane = owner.router.all_lanes[0]
    group.world.connection.leaders[lane.topic, lane.partition] = "another"
    owner.world.connection.latency_s["another"] = SLOW_S
    assert await group.until(lambda: group.owner_of(0) is follower) < 40
    await asyncio.sleep(20)
    assert group.slowest_s < GAP_S
    await group.judge()


async def test_lane_is_handed_over_once_in_ten_minutes() -> None:
    async with GroupWorld("a", "b") as group:
        await begin(group)
        handed_over = 0
        for name in ("a", "b", "a", "b"):
            worker = group[name]
            before = worker.manager.hand_overs.slow.handed_over
            worker.world.connection.latency_s[LEADER] = SLOW_S
            await asyncio.sleep(60)
            handed_over += len(worker.manager.hand_overs.slow.handed_over - before)
            worker.world.connection.latency_s.clear()
            await group.let_pass(70)
            await group.settle()
        assert 0 < handed_over <= len(group["a"].router.all_lanes)
        await group.judge()


async def test_standby_knows_what_an_owner_handed_over_before_it_was_restarted() -> None:
    async with GroupWorld("a", "b") as group:
        await begin(group)
        owner, follower = await slow_down(group)
        kept = sorted(follower.owned)
        await group.until(lambda: not owner.owned)
        owner.world.connection.latency_s.clear()
        await owner.kill()
        owner.start()
        await group.settle()
        for lane in set(follower.followed) - set(kept):
            assert await follower.manager.hand_overs.slow.stands_by([lane], lane) is None
        assert follower.manager.hand_overs.slow._lane_moves.has_moved(0)
        assert not any(map(follower.manager.hand_overs.slow._lane_moves.has_moved, kept))
        await group.judge()
