"""Claim: a worker whose appends get no answer costs seconds, and what befalls all moves no lane."""

import asyncio
from collections.abc import Sequence

import pytest

from dedupe.cluster import append_watch
from dedupe.cluster.lane_manager import NEW_S
from dedupe.cluster.lane_moves import MOVE_AGAIN_S
from dedupe.partition.lane import Lane
from tests.sim.group_world import GroupWorld, Worker
from tests.sim.test_group import NAMES, begin, owner_and_follower
from tests.support.sim.sim_log import LEADER

LASTING_S = 60.0
GAP_S = 6.0
"""The longest time that a client that goes to any worker may be without an answer."""
ELECTION_S = 3.0


def moves(group: GroupWorld) -> int:
    return sum(worker.manager.moves for worker in group.alive)


@pytest.mark.regression(
    "A worker whose large packets to Kafka vanished took the clients of all workers down."
)
@pytest.mark.parametrize("fault", ["drops_large", "silent"])
async def test_worker_whose_appends_are_not_answered_hands_its_lanes_over(fault: str) -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        getattr(owner.world.connection, fault).add(LEADER)
        took_s = await group.until(lambda: group.owner_of(0) is follower)
        await asyncio.sleep(LASTING_S)

        assert took_s < 6
        assert not owner.owned
        assert group.slowest_s < GAP_S
        assert owner.manager.assignment.owners.count(owner.name) == 0
        assert await group.settle() < 1, "the others need it for nothing"
        getattr(owner.world.connection, fault).clear()
        await group.let_pass(append_watch.PROVED_S - 10)
        assert not owner.owned, "not proved yet"
        assert await group.until(lambda: bool(owner.owned)) < 30
        await group.settle()
        await group.judge()


@pytest.mark.regression(
    "A worker that did not reach one broker kept that broker's partitions for 23 seconds."
)
async def test_worker_that_cannot_append_to_one_of_two_leaders_costs_seconds() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        lane = owner.router.all_lanes[0]
        owner.world.connection.leaders[lane.topic, lane.partition] = "another"
        owner.world.connection.silent.add("another")

        assert await group.until(lambda: group.owner_of(0) is follower) < 6
        await asyncio.sleep(20)
        assert group.slowest_s < GAP_S
        await group.judge()


@pytest.mark.regression(
    "Each partition of a broker that answered nobody delayed the probe of another broker by two seconds."
)
async def test_broker_that_answers_nobody_delays_the_probe_of_no_other_one() -> None:
    async with GroupWorld("a", "b") as group:
        owner, lanes = await _owner_of_two_leaders(group, "frozen", "another")
        standby = group["b"]
        for worker in group.alive:
            worker.world.connection.silent.add("frozen")
        await group.until(lambda: lanes[0].appending_since is not None)
        await asyncio.sleep(0.5)
        owner.world.connection.silent.add("another")
        _send_to_all_lanes(group)

        took_s = await group.until(lambda: group.owner_of(1) is standby)
        assert took_s < append_watch.LATE_S + append_watch.PROBE_S + 1
        assert owner.manager.hand_overs.appends.given_up == {1}
        for worker in group.alive:
            worker.world.connection.mend()
        await group.settle(2 * append_watch.PROVED_S)
        await group.judge()


@pytest.mark.regression(
    "Of two brokers that a worker did not reach one healed: it got the partitions of both for ten minutes."
)
async def test_worker_gets_lanes_again_once_all_leaders_that_it_missed_answer() -> None:
    async with GroupWorld("a", "b") as group:
        owner, _ = await _owner_of_two_leaders(group, "one", "other")
        owner.world.connection.silent.update({"one", "other"})
        _send_to_all_lanes(group)
        await group.until(lambda: owner.manager.hand_overs.appends.given_up >= {0, 1})
        owner.world.connection.silent.discard("one")
        await group.let_pass(append_watch.PROVED_S + 30)
        assert not owner.owned
        owner.world.connection.mend()
        await group.until(lambda: bool(owner.owned), append_watch.PROVED_S + 30)
        await group.settle()
        await group.judge()


@pytest.mark.parametrize("fault", ["drops_large", "silent"])
async def test_log_that_answers_no_appends_moves_no_lane(fault: str) -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        before = moves(group)
        for worker in group.alive:
            getattr(worker.world.connection, fault).add(LEADER)
        await asyncio.sleep(30)
        for worker in group.alive:
            getattr(worker.world.connection, fault).clear()
        assert await group.settle() < 15

        assert moves(group) == before
        await group.judge()


async def test_last_worker_keeps_its_lanes() -> None:
    async with GroupWorld("a") as group:
        await begin(group)
        group["a"].world.connection.drops_large.add(LEADER)
        await asyncio.sleep(30)
        assert not group["a"].manager.hand_overs.appends.given_up
        group["a"].world.connection.drops_large.clear()
        assert await group.settle() < 15
        await group.judge()


async def test_of_two_workers_the_last_that_can_append_keeps_all_lanes() -> None:
    async with GroupWorld("a", "b") as group:
        await begin(group)
        group["a"].world.connection.drops_large.add(LEADER)
        await group.until(lambda: len(group["b"].owned) == len(group["b"].router.all_lanes))
        group["b"].world.connection.drops_large.add(LEADER)
        await asyncio.sleep(30)
        assert not group["b"].manager.hand_overs.appends.given_up
        for worker in group.alive:
            worker.world.connection.drops_large.clear()
        await group.settle(2 * append_watch.PROVED_S)
        await group.judge()


async def test_appends_that_are_refused_move_no_lane() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, _ = owner_and_follower(group)
        before = moves(group)
        lane = owner.router.all_lanes[0]
        partition = group.world.log.partition(lane.topic, lane.partition)
        for _ in range(100):
            partition.refused_appends = 1
            await asyncio.sleep(0.3)

        assert moves(group) == before
        await group.settle()
        await group.judge()


async def test_partition_that_answers_nobody_moves_no_lane() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        before = moves(group)
        lane = group["a"].router.all_lanes[0]
        partition = group.world.log.partition(lane.topic, lane.partition)
        partition.is_stuck = True
        await asyncio.sleep(40)
        partition.is_stuck = False
        assert await group.settle() < 15

        assert moves(group) == before
        await group.judge()


async def test_lane_is_given_up_once_in_ten_minutes() -> None:
    async with GroupWorld("a", "b") as group:
        await begin(group)
        for name in ("a", "b", "a", "b", "a"):
            worker = group[name]
            worker.world.connection.drops_large.add(LEADER)
            await asyncio.sleep(40)
            worker.world.connection.drops_large.clear()
            await group.let_pass(70)
            await group.settle()
        given_up = sum(worker.manager.hand_overs.appends.moves for worker in group.alive)
        assert 0 < given_up <= len(group["a"].router.all_lanes)
        await group.judge()


async def test_path_that_takes_ten_seconds_costs_its_owner_the_lanes() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        owner.world.connection.latency_s[LEADER] = 10.0
        assert await group.until(lambda: group.owner_of(0) is follower) < GAP_S
        await asyncio.sleep(20)
        assert group.slowest_s < GAP_S
        await group.judge()


@pytest.mark.parametrize("is_elected", [True, False])
async def test_frozen_leader_moves_no_lane_and_costs_an_election(is_elected: bool) -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        before, leaders = moves(group), group.world.connection.leaders
        lanes = group["a"].router.all_lanes
        for worker in group.alive:
            worker.world.connection.silent.add(LEADER)
        await asyncio.sleep(ELECTION_S)
        if is_elected:
            leaders.update({(lane.topic, lane.partition): "another" for lane in lanes})
        await asyncio.sleep(LASTING_S / 2)
        assert not is_elected or group.slowest_s < GAP_S
        for worker in group.alive:
            worker.world.connection.silent.clear()
        await group.settle()
        assert moves(group) == before
        await group.judge()


@pytest.mark.regression("Two workers whose paths broke at once gave one partition up twice within a second.")
async def test_lane_that_was_given_up_is_not_given_up_again_by_who_has_claimed_it() -> None:
    async with GroupWorld(*NAMES, "d") as group:
        await begin(group)
        owner, follower = next((one, each) for one in group.alive for each in _claimants_of(group, one))
        given_up, own = owner.owned & {0, 1}, follower.owned & {0, 1}
        follower.world.connection.drops_large.add(LEADER)
        await asyncio.sleep(append_watch.LATE_S + append_watch.PROBE_S / 2)
        appends = owner.manager.hand_overs.appends
        appends.given_up |= given_up  # while the other one waits for the answer to its probe
        appends._on_change()
        await group.until(lambda: bool(follower.manager.hand_overs.appends.given_up))
        assert follower.manager.claims
        assert follower.manager.hand_overs.appends.given_up == own
        for worker in group.alive:
            worker.world.connection.mend()
        await group.settle(2 * append_watch.PROVED_S)
        await group.judge()


async def _owner_of_two_leaders(group: GroupWorld, *leaders: str) -> tuple[Worker, Sequence[Lane]]:
    """Have a worker own all lanes, the clean ones of two leaders, and another one follow them."""
    await group.start("a")
    owner = group["a"]
    lanes = owner.router.all_lanes
    places = [(lane.topic, lane.partition) for lane in lanes]
    group.world.connection.leaders.update(dict(zip(places, leaders, strict=False)))
    await asyncio.sleep(NEW_S)  # then who joins owns nothing for a while
    group["b"].start()
    _send_to_all_lanes(group)
    await group.until(lambda: all(group.follower_of(number) is group["b"] for number in range(2)))
    await asyncio.sleep(2)
    assert owner.owned >= {0, 1}
    return owner, lanes


def _send_to_all_lanes(group: GroupWorld) -> None:
    """Have so many clients send that they do not all wait for one lane."""
    now = asyncio.get_running_loop().time()
    for number in range(8):
        group.stream(f"{now}-{number}")


def _claimants_of(group: GroupWorld, owner: Worker) -> list[Worker]:
    """Return those who follow a clean lane of a worker's and own another one."""
    followers = {group.follower_of(lane) for lane in owner.owned & {0, 1}}
    return [worker for worker in group.alive if worker in followers and worker.owned & {0, 1}]


@pytest.mark.regression("An owner that was restarted could give a partition up again within ten minutes.")
async def test_workers_know_what_an_owner_gave_up_before_it_was_restarted() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, _ = owner_and_follower(group)
        kept = min({0, 1} - owner.owned)
        owner.world.connection.drops_large.add(LEADER)
        await group.until(lambda: not owner.owned)
        await owner.kill()
        owner.start()
        await group.settle()
        for worker in set(group.alive) - {owner}:
            assert not await worker.manager.hand_overs.appends.can_append(0, LEADER)
            assert await worker.manager.hand_overs.appends.can_append(kept, LEADER)
        await group.judge()


@pytest.mark.regression(
    "A leader that came back between the probes of two workers cost its owner the partition."
)
@pytest.mark.parametrize("back_s", [2.35, 2.4, 2.45])
async def test_leader_that_comes_back_while_workers_look_moves_no_lane(back_s: float) -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        before = moves(group)
        group.net.delays_s.update({(one, other): 0.2 for one in NAMES for other in NAMES if one != other})
        for worker in group.alive:
            worker.world.connection.is_available = False
        await asyncio.sleep(back_s)
        for worker in group.alive:
            worker.world.connection.mend()
        await group.settle()
        assert moves(group) == before
        assert not group.given_up
        await group.judge()


@pytest.mark.regression("While a worker stayed without answers, the next owner could not give its lanes up.")
async def test_lane_of_a_worker_that_stays_broken_can_be_given_up_again_after_ten_minutes() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        owner.world.connection.drops_large.add(LEADER)
        await group.until(lambda: group.owner_of(0) is follower)
        await group.let_pass(MOVE_AGAIN_S)
        follower.world.connection.drops_large.add(LEADER)
        assert await group.until(lambda: group.owner_of(0) not in (follower, None)) < GAP_S
        assert 0 in follower.manager.hand_overs.appends.given_up
        await group.judge()
