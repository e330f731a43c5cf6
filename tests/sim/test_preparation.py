"""
Claim: while a plan is open, gateways read what new partitions will inherit, and serve on; once it is carried
out, these have little left to read. Whatever befalls a preparation costs time alone.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import waiting
from app.cli.resharding import Resharding, Wanted
from app.process.plan_progress import PlanProgress
from app.process.plan_watch import ALONE_S, LOOK_S, TELL_S, PlanWatch
from dedupe.decide.layout import Layout
from dedupe.decide.planned import hosts_of
from dedupe.decide.resharding import Marking, Routing
from dedupe.partition import preparation
from dedupe.partition.preparation import WATCH_S, Preparation
from dedupe.storage import signs
from dedupe.storage.dividing import decide
from dedupe.storage.routing_records import Note
from dedupe.storage.settling import Settling
from dedupe.storage.signs import CUT_NOW, PREPARED, Prepared
from tests.sim.reshard_world import ReshardWorld, RoutingTopic, begun
from tests.sim.test_reshard import judge
from tests.sim.world import CLEAN
from tests.support.waiting import PATIENCE_S

EVENTS = 300
NEAR = 10
PLANNED = 2 * CLEAN.partitions


@pytest.fixture(autouse=True)
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few records are many."""
    monkeypatch.setattr(signs, "NEAR", NEAR)


async def deliver(world: ReshardWorld, first: int, count: int = EVENTS) -> None:
    """Send events in requests of ten."""
    for number in range(first, first + count, 10):
        world.clock.ms += 10
        await world.deliver([world.event(str(each)) for each in range(number, number + 10)])


class Round:
    """What a round of the gateway runs beside its lanes."""

    def __init__(self, world: ReshardWorld, topic: RoutingTopic) -> None:
        self.world, self.topic = world, topic
        self.progress = PlanProgress(world.clock)
        self.is_due = asyncio.Event()
        self.preparation: Preparation | None = None
        self.can_prepare = True
        begun = world.routing() if world.routing().undecided else None
        assert world.router is not None
        plan = world.router.layout.plan
        watch = PlanWatch(topic, CLEAN, self.prepare, plan, begun, self.progress, world.clock, self.is_due)
        self.task = asyncio.ensure_future(watch.run())

    @asynccontextmanager
    async def prepare(self, routing: Routing) -> AsyncIterator[Preparation | None]:
        world = self.world
        if not self.can_prepare:
            yield None
            return
        assert world.router is not None
        log_of = partial(world.connection.partition_log, CLEAN.name)
        lanes = world.router.lanes
        self.preparation = Preparation(routing, lanes, log_of, lanes[0].context, world.disk)
        yield self.preparation

    async def end(self) -> None:
        """End it with its process, which may be killed."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def due(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.is_due.wait()
            await self.task


async def go_on(world: ReshardWorld, number: int, partitions: int = PLANNED) -> dict[int, int]:
    """Carry the plan out, serve by it, and return how many records each new index had left to read."""
    await world.divide(partitions)
    await world.restart()
    assert world.router is not None
    left = {lane.partition: lane.metrics.restored_records for lane in world.router.lanes if lane.lineage}
    await deliver(world, 0, number)
    judge(world)
    return left


async def opened() -> tuple[ReshardWorld, RoutingTopic]:
    world = await begun()
    await deliver(world, 0)
    topic = RoutingTopic(world)
    await topic.routing(CLEAN.partitions)
    return world, topic


async def test_new_partitions_have_little_left_to_read() -> None:
    world, topic = await opened()
    this = Round(world, topic)
    world.plan(PLANNED)

    await deliver(world, EVENTS)  # while they are prepared
    await this.due()

    assert this.progress.preparing == {}
    left = await go_on(world, 3 * EVENTS)
    assert set(left) == set(range(CLEAN.partitions, PLANNED))
    assert max(left.values()) <= NEAR


@asynccontextmanager
async def commanded(
    world: ReshardWorld, topic: RoutingTopic, partitions: int
) -> AsyncIterator["asyncio.Future[None]"]:
    """Run `gateway reshard plan`, which ends with the context."""
    own = RoutingTopic(world)  # read by itself
    own.notes, own.closed, own.told = topic.notes, topic.closed, topic.told
    settling = Settling(store_of(world, own), CLEAN, world.identity, VirtualClock(world), topic.told.append)

    async def add_partitions(name: str, count: int) -> bool:
        if name == CLEAN.name:
            world.log.add_partitions(name, count)
        return False

    times = 3600.0, 24 * 3600.0
    command = Resharding(
        settling, f"{CLEAN.name}.routing", add_partitions, *times, lambda _: None, lambda: None
    )
    running = asyncio.ensure_future(command.plan(Wanted(partitions), notice_s=0, is_dry=False))
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})


class VirtualClock:
    """Log time of a world, and the time of the virtual loop."""

    def __init__(self, world: ReshardWorld) -> None:
        self.now_ms = lambda: world.clock.ms

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


async def until_marked(world: ReshardWorld, marks: int) -> None:
    """Wait until a plan is open, with so many marks."""
    async with asyncio.timeout(PATIENCE_S):
        while len(world.routing().marks) < marks or not world.routing().undecided:
            await asyncio.sleep(0.1)


async def marked_by(world: ReshardWorld, marks: int) -> None:
    """Have a command mark a plan so often, by events in between."""
    for count in range(1, marks + 1):
        await until_marked(world, count)
        await deliver(world, EVENTS * count, 10 * NEAR)


@pytest.mark.parametrize("loses_disk", [False, True])
async def test_partitions_that_stay_or_come_back_have_little_left_to_read_either(*, loses_disk: bool) -> None:
    world, topic = await opened()
    sent = EVENTS
    for is_first, partitions in zip((True, False, False, False), (PLANNED, 2, PLANNED, 2), strict=True):
        this = Round(world, topic)
        async with commanded(world, topic, partitions) as running:
            await until_marked(world, 0 if is_first else 1)
            await deliver(world, sent)  # while they are prepared
            sent += EVENTS
            await this.due()
            if loses_disk:
                await world.divide(partitions)
                await world.restart(loses_disk=True)
                await deliver(world, 0, sent)
                judge(world)
            else:
                left = await go_on(world, sent, partitions)
                assert max(left.values()) <= 2 * NEAR
                assert set(left) >= ({2, 3} if partitions == PLANNED else {0, 1})
            async with asyncio.timeout(PATIENCE_S):
                await running
        assert is_first or len(world.routing().marks) >= 2


@pytest.mark.parametrize("marks", [1, 2])
async def test_gateways_go_on_without_a_command_that_ends_between_two_marks(marks: int) -> None:
    world, topic, this = await grown()
    async with commanded(world, topic, CLEAN.partitions):
        await marked_by(world, marks)  # and it is killed
    began = asyncio.get_running_loop().time()

    await this.due()

    assert asyncio.get_running_loop().time() - began >= ALONE_S
    assert world.routing().takes_marks
    settling = Settling(store_of(world, topic), CLEAN, world.identity, VirtualClock(world), topic.told.append)
    await settling.settle(range(world.layout.partitions))
    assert len(world.routing().marks) == marks
    left = await go_on(world, 2 * EVENTS, CLEAN.partitions)
    assert max(left.values()) <= 12 * NEAR


async def test_command_that_was_killed_goes_on_with_its_marks_when_it_is_called_again() -> None:
    world, topic, this = await grown()
    async with commanded(world, topic, CLEAN.partitions):
        await marked_by(world, 2)
    await deliver(world, 2 * EVENTS, 10 * NEAR)

    async with commanded(world, topic, CLEAN.partitions) as running:
        await this.due()
        left = await go_on(world, 3 * EVENTS, CLEAN.partitions)
        async with asyncio.timeout(PATIENCE_S):
            await running

    assert len(world.routing().marks) >= 3
    assert max(left.values()) <= 2 * NEAR


async def test_process_that_is_killed_between_marks_goes_on_with_what_it_has() -> None:
    world, topic, this = await grown()
    async with commanded(world, topic, CLEAN.partitions):
        await marked_by(world, 2)
        await this.end()
        await world.restart()
        again = Round(world, topic)
        await again.due()
        left = await go_on(world, 2 * EVENTS, CLEAN.partitions)

    assert max(left.values()) <= 2 * NEAR


async def test_index_that_was_prepared_for_slots_that_did_not_come_is_made_anew() -> None:
    world, topic, this = await grown(3 * CLEAN.partitions)
    async with commanded(world, topic, CLEAN.partitions):
        await this.due()
        await this.end()
    assert this.preparation is not None
    prepared_for = [each._recovery.identity for each in this.preparation._heirs]
    plan = world.routing().plan
    assert plan is not None
    for partition in sorted(world.routing().undecided):
        log = world.log.another().deciding_log(CLEAN.name, partition)
        keeps = partition == 2 * CLEAN.partitions
        await decide(log, world.seal, plan, partition, world.layout, world.identity, keeps=keeps, now_ms=1)
    world.layout = Layout(CLEAN.partitions, world.routing())
    assert world.layout.slots_of(2 * CLEAN.partitions)

    await world.restart()

    assert world.router is not None
    lanes = world.router.lanes[: CLEAN.partitions]
    assert [lane.recovery.identity == prepared_for[lane.partition] for lane in lanes] == [False, True]
    read = [lane.metrics.restored_records for lane in lanes]
    assert read[0] > NEAR >= read[1]
    await deliver(world, 0, 2 * EVENTS)
    judge(world)


async def test_plan_with_marks_is_due_once_its_last_marks_are_written() -> None:
    world, topic, this = await grown()
    await this.end()
    plan = world.plan(CLEAN.partitions, marks=await world.marks())
    settling = Settling(store_of(world, topic), CLEAN, world.identity, world.clock, topic.told.append)
    routing, hosts = world.routing(), hosts_of(world.routing())
    for partition in hosts:
        await topic.note(Note(PREPARED, CLEAN.name, partition, Prepared(plan.number, 0, 0).encoded()))
    assert not (await topic.signs(plan.number)).are_near(routing, hosts)
    for partition in hosts:
        await topic.note(Note(PREPARED, CLEAN.name, partition, Prepared(plan.number, 0, 1).encoded()))
    assert (await topic.signs(plan.number)).are_near(routing, hosts)
    assert not await settling.is_due()

    await topic.write_marking(Marking(plan.number, (), is_last=True))

    assert await settling.is_due()
    await world.crash()


async def test_partition_that_rests_among_others_is_prepared_by_its_own_owner() -> None:
    world, topic = await opened()
    for split in (0, 1, 3):  # 5 has slots then, and 4 has none
        await world.divide(split=split)
    await world.restart()
    await topic.routing(CLEAN.partitions)
    this = Round(world, topic)
    async with commanded(world, topic, 3 * CLEAN.partitions) as running:
        await this.due()
        left = await go_on(world, 2 * EVENTS, 3 * CLEAN.partitions)
        async with asyncio.timeout(PATIENCE_S):
            await running

    assert left[4] <= NEAR


async def grown(partitions: int = 2 * CLEAN.partitions) -> tuple[ReshardWorld, RoutingTopic, Round]:
    """A topic that was divided once, with events since, and what its gateway runs."""
    world, topic = await opened()
    await world.divide(partitions)
    await world.restart()
    await deliver(world, 0, EVENTS)
    await topic.routing(CLEAN.partitions)
    return world, topic, Round(world, topic)


async def test_without_preparation_they_read_everything() -> None:
    world, _ = await opened()
    world.plan(PLANNED)

    left = await go_on(world, 2 * EVENTS)

    assert min(left.values()) > NEAR


async def test_it_says_how_far_it_is_and_reads_no_faster_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "RECORDS_PER_S", EVENTS // 10)
    world, topic = await opened()
    world.plan(PLANNED)
    loop = asyncio.get_running_loop()
    began = loop.time()
    this = Round(world, topic)

    await this.due()

    assert 5.0 <= loop.time() - began <= 15.0
    told = (await topic.signs(1)).told
    assert set(told) == set(range(CLEAN.partitions))
    assert all(said.is_near for said in told.values())
    await this.end()
    await world.crash()


async def test_owner_that_takes_a_partition_over_goes_on_with_the_index_that_is_there() -> None:
    world, topic = await opened()
    world.plan(PLANNED)
    this = Round(world, topic)
    await this.due()
    await this.end()
    topic.notes = type(topic.notes)()  # as if nobody had heard of it
    await deliver(world, EVENTS, 20)

    await world.restart()  # its process dies, and comes again while the plan is open
    again = Round(world, topic)
    await again.due()
    assert again.preparation is not None
    read = [each._recovery._metrics.restored_records for each in again.preparation._heirs]

    assert max(read) <= 20
    assert max((await go_on(world, 2 * EVENTS)).values()) <= NEAR


@pytest.mark.parametrize("lost_updates", [0, 3])
async def test_prepared_index_that_is_lost_or_has_lost_its_tail_costs_time_alone(lost_updates: int) -> None:
    world, topic = await opened()
    world.plan(PLANNED)
    this = Round(world, topic)
    await this.due()
    assert this.preparation is not None
    identities = [each._recovery.identity for each in this.preparation._heirs]

    await world.crash(lost_updates=lost_updates)
    if not lost_updates:
        for identity in identities:
            world.disk.discard(identity)
    await world.start()

    left = await go_on(world, 2 * EVENTS)
    assert lost_updates or min(left.values()) > NEAR


async def test_plan_is_not_due_before_its_heirs_are_near() -> None:
    world, topic = await opened()
    settling = Settling(store_of(world, topic), CLEAN, world.identity, world.clock, topic.told.append)
    assert not await settling.is_due()
    plan = world.plan(PLANNED)
    assert not await settling.is_due()

    for partition in range(CLEAN.partitions):
        await topic.note(prepared(partition, NEAR + 1))
    assert not await settling.is_due()
    for partition in range(CLEAN.partitions):
        assert not await settling.is_due()
        await topic.note(prepared(partition, NEAR))
    assert await settling.is_due()

    await topic.note(prepared(0, None))
    assert not await settling.is_due()
    await topic.note(Note(CUT_NOW, CLEAN.name, 0, str(plan.number)))
    assert await settling.is_due()
    await settling.settle(range(CLEAN.partitions))
    assert not await settling.is_due()
    await world.crash()


async def test_plan_that_is_closed_meanwhile_ends_the_preparation() -> None:
    world, topic = await opened()
    plan = world.plan(PLANNED)
    this = Round(world, topic)
    await topic.close_plan(plan.number)

    await this.due()

    await world.divide(PLANNED, keeps=True)
    await world.restart()
    await deliver(world, 0, 2 * EVENTS)
    left = await go_on(world, 2 * EVENTS)  # by another plan, which reads indexes of its own
    assert min(left.values()) > NEAR


async def test_partition_that_somebody_has_cut_ends_the_round() -> None:
    world, topic = await opened()
    plan = world.plan(PLANNED)
    this = Round(world, topic)
    assert world.router is not None
    world.router.lanes[0].drain()  # of which nobody says anything
    for partition in range(CLEAN.partitions):
        log = world.log.another().deciding_log(CLEAN.name, partition)
        await decide(log, world.seal, plan, partition, world.layout, world.identity, keeps=False, now_ms=1)

    began = asyncio.get_running_loop().time()
    await this.due()

    assert asyncio.get_running_loop().time() - began <= 2 * LOOK_S
    await go_on(world, 2 * EVENTS)


@pytest.mark.regression("A worker without partitions that missed a plan refused every request for ever.")
async def test_plan_that_others_have_carried_out_unseen_ends_the_round() -> None:
    world, topic = await opened()
    await world.divide(PLANNED)
    missed = Round(world, topic)

    await missed.due()

    await world.restart()
    await topic.routing(CLEAN.partitions)
    world.plans.append(world.plans[-1])  # its writer did not know whether it was written
    this = Round(world, topic)
    await asyncio.sleep(LOOK_S)
    assert not this.is_due.is_set()
    await this.end()
    await go_on(world, 2 * EVENTS)


async def test_process_that_cannot_prepare_serves_on_until_the_plan_is_due() -> None:
    world, topic = await opened()
    this = Round(world, topic)
    this.can_prepare = False
    plan = world.plan(PLANNED)

    await deliver(world, EVENTS)
    await asyncio.sleep(2 * LOOK_S)
    assert not this.is_due.is_set()
    assert not (await topic.signs(plan.number)).told
    await topic.note(Note(CUT_NOW, CLEAN.name, 0, str(plan.number)))
    await this.due()

    await go_on(world, 2 * EVENTS)


async def test_preparation_that_breaks_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_self: Preparation) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Preparation, "run", broken)
    world, topic = await opened()
    this = Round(world, topic)
    plan = world.plan(PLANNED)

    await deliver(world, EVENTS)
    await asyncio.sleep(2 * LOOK_S)
    assert not this.task.done()
    await topic.close_plan(plan.number)
    await this.due()
    await world.crash()


async def test_index_is_closed_when_its_source_moves_away_and_opened_when_it_comes_back() -> None:
    world, _ = await opened()
    world.plan(PLANNED)
    assert world.router is not None
    lanes, log_of = world.router.lanes, partial(world.connection.partition_log, CLEAN.name)
    prepared = Preparation(world.routing(), lanes, log_of, lanes[0].context, world.disk)
    running = asyncio.ensure_future(prepared.run())
    await asyncio.sleep(2 * WATCH_S)
    assert all(each._recovery.opened for each in prepared._heirs)

    for lane in world.router.lanes:
        lane.drain()
    await asyncio.sleep(4 * WATCH_S)
    assert not any(each._recovery.opened for each in prepared._heirs)
    assert prepared.lags == {}
    running.cancel()
    await asyncio.wait({running})
    await world.crash()


def store_of(world: ReshardWorld, topic: RoutingTopic) -> Any:
    log = world.log.another()
    return SimpleNamespace(
        routing_topic=topic, deciding_log=log.deciding_log, partition_log=log.partition_log
    )


async def test_command_waits_for_gateways_and_says_what_they_say() -> None:
    world, topic = await opened()
    plan = world.plan(PLANNED)
    settling = Settling(store_of(world, topic), CLEAN, world.identity, world.clock, topic.told.append)
    wait = asyncio.ensure_future(waiting.Waiting(settling, plan.number).until_near())
    for lag in (None, 70_000, 20):
        for partition in range(CLEAN.partitions):
            await topic.note(prepared(partition, lag))
        await asyncio.sleep(TELL_S)
    assert not wait.done()
    await topic.note(prepared(0, NEAR))
    await asyncio.sleep(TELL_S)
    assert not wait.done()
    await topic.note(prepared(1, 0))

    assert await wait
    assert "of 0 of 2 partitions the heirs are prepared" in topic.told[0]
    assert "the last ones have 70,000 offsets to read" in topic.told[1]
    await world.crash()


@pytest.mark.parametrize("was_there", [False, True])
async def test_command_does_not_wait_for_gateways_that_do_not_run(was_there: bool) -> None:
    world, topic = await opened()
    plan = world.plan(PLANNED)
    settling = Settling(store_of(world, topic), CLEAN, world.identity, world.clock, topic.told.append)
    if was_there:
        await topic.note(prepared(0, 5_000_000))
    began = asyncio.get_running_loop().time()

    assert not await waiting.Waiting(settling, plan.number).until_near()

    took = asyncio.get_running_loop().time() - began
    expected = waiting.SILENCE_S if was_there else waiting.SIGN_S
    assert expected <= took <= expected + 1
    assert "no gateway prepares" in topic.told[-1]
    await world.crash()


def prepared(partition: int, lag: int | None) -> Note:
    return Note(PREPARED, CLEAN.name, partition, Prepared(1, lag).encoded())
