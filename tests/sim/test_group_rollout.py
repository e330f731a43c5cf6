"""
Claim: while all workers of a group are restarted one after the other, each restart moves the lanes of the
worker that goes, once, and no other; over the whole of it, no order and no assignment could do with fewer.
"""

import asyncio
from collections import Counter

import pytest

from dedupe.cluster.lane_manager import FOLLOW_S, NEW_S
from tests.sim.group_world import LANES, GroupWorld, Worker

UP_AGAIN_S = 12.0
"""For a pod to be there again, and for the next one to be told to go: less than NEW_S."""
SEEN_S = 0.02


class Moves:
    """Who served each lane, one after the other."""

    def __init__(self, group: GroupWorld) -> None:
        self.group = group
        self.served_by: list[list[str]] = [[] for _ in range(LANES)]
        self.counted = 0
        """What the processes that have ended counted."""

    async def watch(self) -> None:
        while True:
            for lane, names in enumerate(self.served_by):
                owner = self.group.owner_of(lane)
                if owner is not None and names[-1:] != [owner.name]:
                    names.append(owner.name)
            await asyncio.sleep(SEEN_S)

    @property
    def by_lane(self) -> list[int]:
        return [len(names) - 1 for names in self.served_by]

    @property
    def metric(self) -> int:
        """What gateway_lane_moves_total says of all processes there were."""
        return self.counted + sum(worker.manager.moves for worker in self.group.alive)

    async def restart(self, worker: Worker) -> None:
        """Stop a worker in order, and start it again, as a StatefulSet does: the next one follows soon."""
        manager = worker.manager
        assert await worker.stop()
        self.counted += manager.moves
        await asyncio.sleep(UP_AGAIN_S / 2)
        worker.start()
        await self.group.until(lambda: worker.is_open)
        await asyncio.sleep(UP_AGAIN_S / 2)


@pytest.mark.regression("The metric of moves counted every start of a partition, also without a move.")
@pytest.mark.parametrize("is_upwards", [True, False], ids=["upwards", "downwards"])
@pytest.mark.parametrize("count", [2, 3, 5])
async def test_rolling_restart_moves_no_lane_that_it_need_not_move(count: int, is_upwards: bool) -> None:
    names = "abcde"[:count]
    async with GroupWorld(*names) as group:
        await group.start()
        group.stream("x")
        await asyncio.sleep(NEW_S + 5)
        moves = Moves(group)
        assert moves.metric == 0, "who starts a lane that nobody had moves none"
        watching = asyncio.ensure_future(moves.watch())
        await asyncio.sleep(0.1)
        order = names if is_upwards else names[::-1]
        lanes_of_first = len(group[order[0]].owned)
        for name in order:
            before, owned = moves.by_lane, group[name].owned
            await moves.restart(group[name])
            if name != order[-1]:  # then all have returned
                moved = {lane: moves.by_lane[lane] - before[lane] for lane in range(LANES)}
                assert moved == {lane: int(lane in owned) for lane in range(LANES)}
        await asyncio.sleep(NEW_S)
        await group.settle()
        watching.cancel()

        shares = Counter(names[-1] for names in moves.served_by)
        assert max(shares.values()) - min(shares.values()) <= 1
        assert moves.metric == sum(moves.by_lane)
        # Whoever gets the first one's lanes is still to be restarted, and others have the last one's share.
        assert sum(moves.by_lane) <= LANES + lanes_of_first + shares[order[-1]]
        assert max(moves.by_lane) <= 2
        assert group.refusals == 0
        assert group.slowest_s < 2
        await group.judge()


async def test_workers_that_are_no_longer_new_disturb_nobody_if_their_lanes_are_even() -> None:
    async with GroupWorld("a", "b", "c") as group:
        await group.start()
        rebalances = group.coordinator.rebalances
        await asyncio.sleep(NEW_S + 10)

        assert group.coordinator.rebalances == rebalances


async def test_worker_that_joins_gets_its_share_when_no_other_restart_has_followed() -> None:
    async with GroupWorld("a", "b", "c") as group:
        await group.start("a", "b")
        await asyncio.sleep(NEW_S + 5)
        group["c"].start()
        await group.settle()
        await asyncio.sleep(NEW_S - 5)
        assert not group["c"].owned

        await asyncio.sleep(10)
        await group.settle()
        assert len(group["c"].owned) == LANES // 3
        assert group["c"].manager.moves == LANES // 3
        await group.judge()


@pytest.mark.regression("The next owner of a partition took the place of its standby while it read the log.")
async def test_lanes_go_to_their_standbys_if_the_worker_that_has_returned_cannot_follow_them_in_time() -> (
    None
):
    async with GroupWorld("a", "b", "c") as group:
        await group.start()
        await asyncio.sleep(NEW_S + 5)
        moves = Moves(group)
        await moves.restart(group["a"])
        group["a"].world.connection.is_available = False
        leaving = group["b"]
        standbys = {lane: group.follower_of(lane) for lane in leaving.owned}

        began = asyncio.get_running_loop().time()
        assert await leaving.stop()
        assert FOLLOW_S <= asyncio.get_running_loop().time() - began < FOLLOW_S + 5
        for lane, standby in standbys.items():
            if standby is not None:
                assert group.owner_of(lane) is standby
        group["a"].world.connection.is_available = True
        await group.settle()
        await group.judge()
