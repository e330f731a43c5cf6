"""Claim: whoever takes a log over disturbs nobody without need, counts truly, and finds the same window."""

import pytest

from dedupe.decide.window import WindowPolicy
from tests.sim.test_recovery import BY_KEYS, BY_TIME, with_history
from tests.sim.test_router import events_of
from tests.sim.world import CLEAN, World
from tests.support.sim.faults import SimFaults


@pytest.mark.parametrize(
    ("fault", "accepted", "refused"), [(SimFaults(lose_reply=1.0), 2, 0), (SimFaults(refuse=1.0), 1, 1)]
)
async def test_event_in_doubt_is_counted_as_what_became_of_it(
    fault: SimFaults, accepted: int, refused: int
) -> None:
    world = World()
    lane = (await world.start()).lanes[0]
    first, second = events_of(world, 0, 2)
    await world.deliver([first])
    since_offset = lane.counts.since_offset
    world.log.rng.faults = fault
    assert not await world.send([second])
    world.log.rng.faults = SimFaults()
    await world.wait_until_active()

    assert lane.counts.since_offset == since_offset
    tally = lane.metrics.tally
    assert (tally.accepted, tally.refused, tally.unknown) == (accepted, refused, 0)
    world.judge()


@pytest.mark.regression(
    "An index that had passed over markers was continued on a log whose offsets were given out again."
)
async def test_index_that_passed_over_markers_which_the_log_has_lost_is_rebuilt() -> None:
    world = World()
    kept, lost, later = events_of(world, 0, 3)
    await world.start()
    await world.deliver([kept])
    for _ in range(3):  # each fence takes offsets, which the index has applied
        await world.crash()
        await world.start()
    await world.deliver([lost])
    await world.crash(lost_updates=1)
    world.lose_tail(0, 1)
    world.log.partition(CLEAN.name, 0).end = world.committed()[0][-1].offset + 1  # the fences' markers, too
    world.disk, world.spare_disk = world.spare_disk, world.disk
    await world.start()
    await world.deliver([later])
    for _ in range(3):  # up to the end that the first index knows
        await world.crash()
        await world.start()
    await world.crash()
    world.disk, world.spare_disk = world.spare_disk, world.disk

    router = await world.start()
    await world.deliver([later])

    assert router.lanes[0].metrics.rebuilds == 1
    world.judge()
    world.judge_index(router.lanes[0])


@pytest.mark.parametrize("policy", [BY_TIME, BY_KEYS])
async def test_index_rebuilt_in_a_running_process_is_the_one_that_a_new_process_builds(
    policy: WindowPolicy,
) -> None:
    world, events = await with_history(policy)
    assert world.router is not None
    lane = world.router.lanes[0]
    world.disk.damage(world.index_identity(0))
    await world.deliver(events[-1:])
    assert lane.metrics.rebuilds == 1
    steps, state = lane.partition_index.index.steps, lane.partition_index.index.state
    await world.crash()
    world.disk.discard(world.index_identity(0))

    lane = (await world.start()).lanes[0]

    assert lane.partition_index.index.steps == steps
    assert lane.partition_index.index.state[1:] == state[1:]


@pytest.mark.parametrize("policy", [BY_TIME, BY_KEYS])
async def test_restart_forgets_and_remembers_what_the_process_before_it_did(policy: WindowPolicy) -> None:
    world, _ = await with_history(policy)
    assert world.router is not None
    before = world.router.lanes[0].partition_index.window
    await world.crash()

    window = (await world.start()).lanes[0].partition_index.window

    assert (window.start, window.keys, window.steps) == (before.start, before.keys, before.steps)
    assert window.start > 0


async def test_process_whose_clock_is_behind_writes_no_record_older_than_the_last() -> None:
    world = World()
    await world.start()
    await world.deliver(events_of(world, 0, 1))
    await world.crash()
    world.clock.ms -= 3_600_000

    await world.start()
    await world.deliver(events_of(world, 0, 2))

    first, second = (record.timestamp_ms for record in world.committed()[0])
    assert first == second
