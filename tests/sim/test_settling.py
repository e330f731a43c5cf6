"""
Claim: an open plan ends, whoever of those that settle it dies: owners decide what is theirs at once, whoever
waits for too long decides the rest, and what one has decided no other decides anew.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from dedupe.decide.layout import Layout
from dedupe.decide.resharding import Marking, Plan, Routing
from dedupe.storage.log import no_crashpoint
from dedupe.storage.settling import OTHERS_S, Settling
from tests.sim.crashes import SimulatedCrashError
from tests.sim.reshard_world import ReshardWorld
from tests.sim.world import CLEAN


class LoopClock:
    """Log time of a world, and the time of the virtual loop."""

    def __init__(self, world: ReshardWorld) -> None:
        self._world = world

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        return self._world.clock.ms


def settling(
    world: ReshardWorld, *, is_closing: bool = False, crashpoint: Callable[[str], None] = no_crashpoint
) -> Settling:
    """Return what a process of the deployment settles with."""

    async def routing(partitions: int) -> tuple[Routing, bool]:
        assert partitions == CLEAN.partitions
        return world.routing(), is_closing

    async def seal() -> object:
        return world.seal

    log = world.log.another(crashpoint=crashpoint)
    plans = SimpleNamespace(routing=routing, seal=seal)
    store = SimpleNamespace(
        routing_topic=plans,
        deciding_log=log.deciding_log,
        release_fence=log.release_fence,
        fences=log.fences,
    )
    return Settling(store, CLEAN, world.identity, LoopClock(world), lambda text: None)


async def begun() -> ReshardWorld:
    """A topic with events, an open plan, and no process that runs."""
    world = ReshardWorld()
    world.prepare()
    await world.start()
    for number in range(50):
        world.clock.ms += 10
        await world.deliver([world.event(str(number))])
    await world.crash()
    world.plan(2 * CLEAN.partitions)
    return world


async def go_on(world: ReshardWorld) -> None:
    """Serve by the new layout; every id has its place of before, and is there once."""
    told = dict(world.told)
    world.layout = Layout(CLEAN.partitions, world.routing())
    await world.start()
    for number in range(150):
        await world.deliver([world.event(str(number))])
    assert {name: world.told[name] for name in told} == told
    keys = [record.key for records in world.committed() for record in records]
    assert len(keys) == len(set(keys)) == 150
    world.judge_homes()


async def test_owners_decide_what_is_theirs_at_once() -> None:
    world = await begun()
    began = asyncio.get_running_loop().time()
    half = CLEAN.partitions // 2

    await asyncio.gather(
        settling(world).settle(range(half)), settling(world).settle(range(half, CLEAN.partitions))
    )

    assert asyncio.get_running_loop().time() - began < OTHERS_S
    assert world.routing().version.cut == set(range(CLEAN.partitions))
    await go_on(world)


async def test_partition_of_an_owner_that_is_gone_is_decided_after_a_while() -> None:
    world = await begun()
    began = asyncio.get_running_loop().time()

    await settling(world).settle([0])

    assert asyncio.get_running_loop().time() - began >= OTHERS_S
    await go_on(world)


async def test_plan_that_an_operator_closes_ends_without_a_cut() -> None:
    world = await begun()

    await settling(world, is_closing=True).settle(range(CLEAN.partitions))

    assert not world.routing().undecided
    assert not world.routing().version.cut
    await go_on(world)


async def test_wish_to_close_comes_too_late_once_a_partition_is_cut() -> None:
    world = await begun()
    settle = settling(world)
    with suppress(TimeoutError):
        async with asyncio.timeout(OTHERS_S / 2):
            await settle.settle([0])
    assert world.routing().version.cut == {0}

    await settling(world, is_closing=True).settle(range(CLEAN.partitions))

    assert world.routing().version.cut == set(range(CLEAN.partitions))
    await go_on(world)


@pytest.mark.parametrize("others", [(), (1,)], ids=["alone", "beside another owner"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("step", ["decide", "decided"])
async def test_whoever_settles_may_end_anywhere(step: str, number: int, others: tuple[int, ...]) -> None:
    world = await begun()
    left = number

    def crash(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if reached == step and not left:
            raise SimulatedCrashError(step)

    beside = asyncio.ensure_future(settling(world).settle(others)) if others else None
    with suppress(SimulatedCrashError):
        await settling(world, crashpoint=crash).settle([0, *range(2, CLEAN.partitions)])
    if beside is not None:
        await beside
    await settling(world).settle()  # a process that starts

    assert world.routing().version.cut == set(range(CLEAN.partitions))
    await go_on(world)


@pytest.mark.regression(
    "A worker that was frozen during a plan kept the fence of a partition that others had decided."
)
async def test_fence_of_a_partition_that_others_decide_before_the_last_marks_is_released() -> None:
    world = await begun()
    (plan,) = world.plans
    assert isinstance(plan, Plan)
    world.plans[-1] = plan._replace(read_from_ms=1, marks=await world.marks())
    owner = settling(world)
    store: Any = owner.store
    log = store.deciding_log(CLEAN.name, 0)
    await log.fence()
    store.fences.keep()
    await log.close()

    async def write_marking(marking: Marking) -> None:
        world.plans.append(marking)
        await settling(world).settle(range(CLEAN.partitions))  # others, while it is frozen

    store.routing_topic.write_marking = write_marking
    await owner.settle([0])

    assert store.fences.take((CLEAN.name, 0)) is None
    await go_on(world)
