"""
Claim: whatever `gateway reshard plan` and `close` leave behind, one of them goes on with it; and a command
says what is so, also while a plan is open.
"""

from collections.abc import Awaitable, Callable
from itertools import cycle
from types import SimpleNamespace

import pytest

from app.cli.resharding import Resharding, Wanted
from dedupe.decide.layout import Layout
from dedupe.decide.resharding import Decision, Plan, Routing, spread_over
from dedupe.model.errors import ConfigurationError
from dedupe.model.record import build_record
from dedupe.storage.dividing import decide
from dedupe.storage.settling import Settling
from tests.sim.reshard_world import ReshardWorld, RoutingTopic, begun, deliver
from tests.sim.session_world import DAY_MS
from tests.sim.world import CLEAN


async def world_with_command() -> tuple[ReshardWorld, RoutingTopic, Resharding]:
    world = await begun()
    topic = RoutingTopic(world)
    log = world.log.another()
    store = SimpleNamespace(
        routing_topic=topic, deciding_log=log.deciding_log, partition_log=log.partition_log
    )

    settling = Settling(store, CLEAN, world.identity, world.clock, topic.told.append)

    async def add_partitions(name: str, count: int) -> bool:
        if name == CLEAN.name:
            world.log.add_partitions(name, count)
        return True

    add: Callable[[str, int], Awaitable[bool]] = add_partitions
    return (
        world,
        topic,
        Resharding(settling, f"{CLEAN.name}.routing", add, 3600.0, 24 * 3600.0, lambda _: None, lambda: None),
    )


async def cut(world: ReshardWorld, partition: int, *, keeps: bool = False) -> None:
    log = world.log.another().deciding_log(CLEAN.name, partition)
    plan = world.routing().plan
    assert plan is not None
    await decide(log, world.seal, plan, partition, world.layout, world.identity, keeps=keeps, now_ms=1)


async def test_plan_with_a_cut_goes_on_although_somebody_wished_to_close_it() -> None:
    world, topic, command = await world_with_command()
    plan = world.plan(2 * CLEAN.partitions)
    await topic.close_plan(plan.number)
    with pytest.raises(ConfigurationError, match="being closed"):
        await command.plan(Wanted(plan.partitions), notice_s=0, is_dry=False)
    await cut(world, 0)  # by a plan command that ran at the same time

    with pytest.raises(ConfigurationError, match="goes on with the others"):
        await command.close()
    assert "will be divided" in [row["state"] for row in (await command.status())[0]]
    await command.plan(Wanted(plan.partitions), notice_s=0, is_dry=False)

    assert not world.routing().undecided


async def test_status_says_what_happens_next() -> None:
    world, topic, command = await world_with_command()

    async def next_step() -> str:
        return (await command.status())[1]

    assert await next_step() == "the topic was never divided"
    plan = world.plan(2 * CLEAN.partitions)
    assert await next_step() == (
        "plan 1 is open: no partition is divided yet; the `gateway reshard plan` that began it goes on with "
        "it, and `gateway reshard close` ends it"
    )
    await topic.close_plan(plan.number)
    assert "is being closed" in await next_step()
    await cut(world, 0)
    assert "1 of 2 partitions are yet to be divided" in await next_step()
    await cut(world, 1, keeps=True)
    assert await next_step() == "plan 1 has ended: 1 of 2 partitions are divided"


async def test_plan_of_somebody_else_is_not_taken_for_ones_own() -> None:
    world, topic, command = await world_with_command()
    topic.before_plan = lambda: world.plan(2 * CLEAN.partitions)

    with pytest.raises(ConfigurationError, match="somebody else has planned"):
        await command.plan(Wanted(3 * CLEAN.partitions), notice_s=0, is_dry=False)

    assert world.routing().undecided == set(range(CLEAN.partitions)), "decided a plan nobody asked it for"


async def test_status_says_what_partitions_inherit_while_a_later_plan_is_open() -> None:
    world, _, command = await world_with_command()
    await world.divide(2 * CLEAN.partitions)
    inherits = [row["inherits"] for row in (await command.status())[0]]
    world.plan(4 * CLEAN.partitions)

    assert spread_over(world.routing(), 4 * CLEAN.partitions)
    assert [row["inherits"] for row in (await command.status())[0]] == inherits
    await cut(world, 0)
    assert [row["inherits"] for row in (await command.status())[0]][: len(inherits)] == inherits


async def test_topic_of_which_a_partition_kept_its_slots_is_divided_again() -> None:
    world, _, command = await world_with_command()
    world.plan(2 * CLEAN.partitions)
    for partition in range(CLEAN.partitions):
        await cut(world, partition, keeps=partition == 0)
    assert CLEAN.partitions not in world.routing().homes, "it would have been divided off the one that kept"

    await command.plan(Wanted(4 * CLEAN.partitions), notice_s=0, is_dry=False)

    layout = Layout(CLEAN.partitions, world.routing())
    assert layout.partitions == 4 * CLEAN.partitions
    assert all(layout.slots_of(partition) for partition in range(layout.partitions))


async def test_partition_below_others_that_somebody_wrote_to_gets_no_slots() -> None:
    world, _, command = await world_with_command()
    world.plan(2 * CLEAN.partitions)
    for partition in range(CLEAN.partitions):
        await cut(world, partition, keeps=partition == 0)
    foreign = world.log.another().partition_log(CLEAN.name, CLEAN.partitions)
    await foreign.fence()
    await foreign.append([build_record(world.event("1"), lane_seq=0, timestamp_ms=1)])

    with pytest.raises(ConfigurationError, match=f"partition {CLEAN.partitions} of .* somebody else"):
        await command.plan(Wanted(4 * CLEAN.partitions), notice_s=0, is_dry=False)


@pytest.mark.regression("A partition without slots of which retention had deleted markers never got any.")
async def test_partition_below_others_of_which_markers_are_deleted_gets_slots() -> None:
    world, _, command = await world_with_command()
    world.plan(2 * CLEAN.partitions)
    for partition in range(CLEAN.partitions):
        await cut(world, partition, keeps=partition == 0)
    await world.log.another().partition_log(CLEAN.name, CLEAN.partitions).fence()  # by its lane, which rests
    resting = world.log.partition(CLEAN.name, CLEAN.partitions)
    world.trim(CLEAN.partitions, resting.end)

    await command.plan(Wanted(4 * CLEAN.partitions), notice_s=0, is_dry=False)

    routing = world.routing()
    assert {lineage.empty_until for lineage in routing.lineages.values()} == {0, resting.end}
    assert routing.lineages[CLEAN.partitions].empty_until == resting.end


async def test_dry_run_says_what_new_partitions_read_and_changes_nothing() -> None:
    world, topic, command = await world_with_command()
    for number in range(40):
        world.clock.ms += 10
        await world.deliver([world.event(str(number))])
    records = sum(map(len, world.committed()))
    offsets = sum(log.end for log in (world.log.partition(CLEAN.name, each) for each in range(2)))

    await command.plan(Wanted(2 * CLEAN.partitions), notice_s=0, is_dry=True)

    assert records == 40
    assert f"read {offsets} records, while they serve" in topic.told[-1]
    assert "1 minutes of one gateway" in topic.told[-1]
    assert f"{offsets / 2:,.0f} ids are kept twice" in topic.told[-1]
    assert not world.plans


@pytest.mark.parametrize("is_closed", [False, True])
async def test_plan_with_marks_is_carried_out_at_once_or_closed(*, is_closed: bool) -> None:
    world, topic, command = await world_with_command()
    await world.divide(2 * CLEAN.partitions)
    homes = world.routing().homes
    if is_closed:
        world.plan(CLEAN.partitions, marks=await world.marks())
        await command.close()
    else:
        await command.plan(Wanted(CLEAN.partitions), notice_s=0, is_dry=False, is_now=True)

    routing = world.routing()
    assert not routing.undecided
    assert not routing.takes_marks
    assert len(routing.marks) == 1
    assert (routing.homes == homes) is is_closed
    assert len(topic.told) >= 2 * CLEAN.partitions


async def test_too_many_pieces_are_refused_until_the_first_of_them_are_forgotten() -> None:
    world, _, command = await world_with_command()
    routing, counts, now_ms = Routing.begun_with(CLEAN.partitions), cycle((4, 2)), world.clock.ms

    def plan_next() -> Plan:
        return command._plan_of(routing, spread_over(routing, next(counts)))

    def divide_until_refused() -> None:
        nonlocal routing
        for number in range(1, 100):
            routing = routing.with_plan(plan_next())
            routing = routing.with_all(
                Decision(number, partition, 100 * number, now_ms, 10 * number)
                for partition in sorted(routing.undecided)
            )

    with pytest.raises(ConfigurationError, match="more than 30 pieces of logs"):
        divide_until_refused()
    assert 20 < max(len(lineage.levels) for lineage in routing.lineages.values()) <= 30
    world.clock.ms += 2 * DAY_MS
    next(counts)  # the one that was refused
    assert plan_next().read_from_ms > now_ms


@pytest.mark.regression("The clock of the command's machine decided what plans let be forgotten.")
async def test_clock_that_is_ahead_of_the_log_lets_nothing_be_forgotten() -> None:
    world, _, command = await world_with_command()
    for number in range(20):
        await world.deliver([world.event(str(number))])
    newest_ms = world.clock.ms
    await world.divide(2 * CLEAN.partitions)
    routing = world.routing()
    world.clock.ms += 90 * DAY_MS  # of the command alone: nothing is written meanwhile

    plan = command._plan_of(routing, spread_over(routing, CLEAN.partitions))
    marked = await command._marked(plan, routing)

    assert plan.read_from_ms > newest_ms
    assert 0 < marked.read_from_ms <= newest_ms - DAY_MS
    assert marked.marks


async def test_status_says_as_what_each_index_counts_what_it_inherits() -> None:
    world, _, command = await world_with_command()
    await world.divide(2 * CLEAN.partitions)

    rows = (await command.status())[0]

    assert [row["lineage"] for row in rows[: CLEAN.partitions]] == [None] * CLEAN.partitions
    for row in rows[CLEAN.partitions :]:
        lineage = world.routing().lineages[row["partition"]]
        (level,), begins_at = row["lineage"]["levels"], row["lineage"]["begins_at"]
        told = (lineage.levels[0].partition, 0, lineage.levels[0].end, lineage.levels[0].shift)
        assert (level["partition"], level["start"], level["end"], level["shift"], begins_at) == (*told, 0)
        assert level["lane_seq_min"] == 0
        assert [count["partitions"] for count in row["counts"]] == [CLEAN.partitions]


async def spread_widely(world: ReshardWorld) -> None:
    """Have the topic divided into so many partitions that two could not inherit them at once."""
    await world.divide(16 * CLEAN.partitions)
    await deliver_everywhere(world)


async def deliver_everywhere(world: ReshardWorld) -> None:
    """Have every partition with slots get events, and no process that runs."""
    world.layout = Layout(CLEAN.partitions, world.routing())
    await world.restart()
    numbers = iter(range(world.clock.ms, world.clock.ms + 10_000))
    starts = {each: world.routing().starts_of(each)[-1].offset for each in set(world.routing().homes)}
    while any(not has_records(world, each, start) for each, start in starts.items()):
        await deliver(world, [next(numbers) for _ in range(20)])
    await world.crash()


def has_records(world: ReshardWorld, partition: int, start: int) -> bool:
    return any(record.offset >= start for record in world.committed()[partition])


async def test_plan_that_cannot_be_prepared_is_refused_with_the_steps_that_can() -> None:
    world, topic, command = await world_with_command()
    await spread_widely(world)

    with pytest.raises(ConfigurationError, match="get 503 for as many minutes; plan --partitions 4 first"):
        await command.plan(Wanted(CLEAN.partitions), notice_s=0, is_dry=False)
    assert world.routing().version.plan == 1, "it has begun"
    await command.plan(Wanted(CLEAN.partitions), notice_s=0, is_dry=True)
    assert "and --partitions 2 when that has ended, or say --now" in topic.told[-1]

    for partitions in (2 * CLEAN.partitions, CLEAN.partitions):
        await deliver_everywhere(world)
        await command.plan(Wanted(partitions), notice_s=0, is_dry=False, is_now=True)
        assert world.routing().marks, "its indexes cannot be prepared"
    assert len(set(world.routing().homes)) == CLEAN.partitions


async def test_plan_that_cannot_be_prepared_is_carried_out_at_once_if_that_is_wanted() -> None:
    world, _, command = await world_with_command()
    await spread_widely(world)

    await command.plan(Wanted(CLEAN.partitions), notice_s=0, is_dry=False, is_now=True)

    assert len(set(world.routing().homes)) == CLEAN.partitions
    assert not world.routing().marks
