"""Claim: wherever the network between workers is cut, only those cut off from others lack answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations

import pytest
from structlog.testing import capture_logs

from tests.sim.group_world import GroupWorld, Worker
from tests.sim.test_group import NAMES, begin, owner_and_follower

LASTING_S = 30.0


@asynccontextmanager
async def served_by_a_third() -> AsyncIterator[tuple[GroupWorld, Worker, Worker]]:
    """Have clients send by the worker that neither owns lane 0 nor follows it; return who does."""
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        (third,) = {*group.alive} - {owner, follower}
        group.stream("x", by=[third.name])
        await asyncio.sleep(1)
        yield group, owner, follower


async def test_lane_does_not_go_to_and_fro_between_two_workers_that_do_not_reach_each_other() -> None:
    async with served_by_a_third() as (group, owner, follower):
        moves = sum(worker.manager.moves for worker in group.alive)
        group.net.cut(owner.name, follower.name)
        await asyncio.sleep(LASTING_S)

        assert sum(worker.manager.moves for worker in group.alive) - moves <= 4
        assert sum(worker.manager.claims for worker in group.alive) <= 2
        assert sorted(map(bool, (owner.owned, follower.owned))) == [False, True]
        assert group.refusals == 0
        assert group.slowest_s < 2
        group.net.mend(owner.name, follower.name)
        assert await group.until(lambda: all(worker.owned for worker in group.alive)) < 10
        await group.judge()


async def test_every_worker_is_told_which_pair_does_not_reach_each_other_and_why() -> None:
    async with served_by_a_third() as (group, owner, follower):
        group.net.cut(owner.name, follower.name)
        with capture_logs() as logs:
            await asyncio.sleep(LASTING_S)

        one, other = sorted((owner.name, follower.name))
        links = [f"{one} -> {other}", f"{other} -> {one}"]
        for worker in group.alive:
            told = worker.manager.assignment.broken
            assert [line.partition(": ")[0] for line in told] == links
            assert all(line.partition(": ")[2] for line in told)
        logged = [log["link"] for log in logs if log["event"] == "another worker does not reach this one"]
        assert sorted(link.partition(": ")[0] for link in logged) == links, "once each, by whom it concerns"

        group.net.mend(owner.name, follower.name)
        await group.until(lambda: not any(worker.manager.assignment.broken for worker in group.alive))


async def test_client_of_a_worker_that_does_not_reach_an_owner_is_soon_told_to_go_elsewhere() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        group.net.cut(owner.name, follower.name)
        await asyncio.sleep(12)
        cut_off = owner if not owner.owned else follower
        began = asyncio.get_running_loop().time()
        lanes = [0, 1]
        events = [
            next(event for number in range(99) if (event := group.world.event(f"{number}")).partition == lane)
            for lane in lanes
        ]
        answers = [await cut_off.send([event]) for event in events]

        assert False in answers
        assert asyncio.get_running_loop().time() - began < 0.1
        await group.deliver(events)
        group.net.mend(owner.name, follower.name)
        await group.settle()
        await group.judge()


async def test_cut_of_one_direction_costs_as_much_as_of_both() -> None:
    async with served_by_a_third() as (group, owner, follower):
        group.net.hold(owner.name, follower.name)
        await asyncio.sleep(LASTING_S)

        assert sum(worker.manager.claims for worker in group.alive) <= 2
        assert group.refusals == 0
        assert group.slowest_s < 3
        group.net.release(owner.name, follower.name)
        assert await group.settle() < 10
        await group.judge()


async def test_worker_that_sees_the_group_and_no_other_worker_owns_nothing() -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        lonely, *others = group.alive
        group.stream("x", by=[worker.name for worker in others])
        await asyncio.sleep(1)
        for other in others:
            group.net.cut(lonely.name, other.name)
        await asyncio.sleep(LASTING_S)

        assert not lonely.owned
        assert not lonely.is_open
        assert sum(worker.manager.claims for worker in group.alive) <= 4
        assert group.refusals == 0
        assert group.slowest_s < 3
        for other in others:
            group.net.mend(lonely.name, other.name)
        assert await group.settle() < 10
        await group.judge()


async def test_connections_that_break_again_and_again_cost_no_answer() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        for _ in range(4):
            for one, other in combinations(NAMES, 2):
                await asyncio.sleep(2)
                group.net.reset(one, other)

        assert group.refusals == 0
        assert group.slowest_s < 2
        assert sum(worker.manager.claims for worker in group.alive) == 0, "each was mended at once"
        await group.judge()


@pytest.mark.regression(
    "A path between two workers that dropped large packets took both out, and was mended for ever."
)
@pytest.mark.parametrize("every_s", [0.05, 4.0], ids=["busy", "now and then"])
@pytest.mark.parametrize("ways", ["one way", "both ways"])
async def test_path_that_drops_large_packets_costs_one_worker(ways: str, every_s: float) -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        group.stream("x", every_s=every_s, size=2_000)
        group.stream("y", every_s=every_s, size=2_000)
        await asyncio.sleep(1)
        moves = sum(worker.manager.moves for worker in group.alive)
        group.net.size_max[owner.name, follower.name] = 1_000
        if ways == "both ways":
            group.net.size_max[follower.name, owner.name] = 1_000
        await asyncio.sleep(40)

        assert sorted(map(bool, (owner.owned, follower.owned))) == [False, True]
        assert sum(worker.manager.moves for worker in group.alive) - moves <= 4
        assert group.slowest_s < 10
        group.net.mend_all()
        assert await group.until(lambda: all(worker.owned for worker in group.alive)) < 10
        await group.judge()


@pytest.mark.regression("A link that broke each second never counted as broken.")
async def test_link_that_breaks_again_and_again_counts_as_missed() -> None:
    async with GroupWorld(*NAMES) as group:
        await begin(group)
        owner, follower = owner_and_follower(group)
        for _ in range(10):
            await asyncio.sleep(1)
            group.net.reset(owner.name, follower.name)

        assert sorted(map(bool, (owner.owned, follower.owned))) == [False, True]
        assert group.slowest_s < 6
        assert await group.until(lambda: all(worker.owned for worker in group.alive)) < 15
        await group.judge()


@pytest.mark.regression("A path between two workers that trickled stayed a link, and what took it waited.")
@pytest.mark.parametrize("fault", ["accepts", "trickles"])
@pytest.mark.parametrize("ways", ["one way", "both ways"])
async def test_path_on_which_pings_pass_and_submissions_wait_costs_one_worker(fault: str, ways: str) -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        for client in ("x", "y"):
            group.stream(client, size=4_000)
        await asyncio.sleep(1)
        pair = owner.name, follower.name
        for way in (pair, pair[::-1])[: 1 + (ways == "both ways")]:
            group.net.swallowed_over.update({way: 1_600} if fault == "accepts" else {})
            group.net.bytes_per_s.update({way: 4_000.0} if fault == "trickles" else {})
        with capture_logs() as logs:
            await asyncio.sleep(40)

        assert sorted(map(bool, (owner.owned, follower.owned))) == [False, True]
        assert group.slowest_s < 10
        assert any(log["event"] == "a worker is down" for log in logs)
        told = [line.partition(": ") for line in group.alive[0].manager.assignment.broken]
        assert any({*link.split(" -> ")} == {*pair} and why for link, _, why in told)
        group.net.mend_all()
        await group.settle()
        await group.judge()


async def test_path_of_three_and_a_half_seconds_there_and_back_moves_no_lane() -> None:
    async with served_by_a_third() as (group, owner, follower):
        (third,) = {*group.alive} - {owner, follower}
        moves = sum(worker.manager.moves for worker in group.alive)
        for delay_s in (0.5, 1.0, 1.5, 1.75):
            group.net.delays_s[owner.name, third.name] = group.net.delays_s[third.name, owner.name] = delay_s
            await asyncio.sleep(2)
        group.slowest_s = 0
        await asyncio.sleep(LASTING_S)

        assert 3.5 < group.slowest_s < 4.5
        assert group.refusals == 0
        assert sum(worker.manager.moves for worker in group.alive) == moves
        group.net.mend_all()
        await group.judge()
