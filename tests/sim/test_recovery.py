"""Claim: a lane comes back by itself from what befalls its log, and at no higher price than it must."""

import pytest
from structlog.testing import capture_logs

from dedupe.errors import IdentityMismatchError
from dedupe.identity import Identity
from dedupe.router import Router
from dedupe.sim.sim_log import SimFaults
from dedupe.window import WindowPolicy
from tests.sim.world import ManualClock, World


def rebuilds_of(router: Router) -> int:
    return sum(lane.metrics.rebuilds for lane in router.all_lanes)


async def test_commit_whose_marker_is_late_costs_no_rebuild() -> None:
    world = World(faults=SimFaults(seed=1, delay_marker=1.0, abort=0.3))
    router = world.boot()
    await world.wait_until_active()

    for number in range(60):
        await world.send([world.event(str(number))])
        await world.wait_until_active()

    assert sum(lane.metrics.failures for lane in router.all_lanes) > 5
    assert rebuilds_of(router) == 0
    world.judge()


@pytest.mark.parametrize("is_pinned", [True, False])
async def test_start_with_a_wrong_secret_leaves_the_indexes_alone(is_pinned: bool) -> None:
    world = World()
    world.boot()
    await world.wait_until_active()
    for number in range(20):
        await world.deliver([world.event(str(number))])
    await world.crash()
    if not is_pinned:
        world.log.forget_notes()
    right, world.identity = world.identity, Identity(b"a secret of somebody else")
    with pytest.raises(IdentityMismatchError):
        await world.start()
    await world.crash()
    world.identity = right

    router = world.boot()
    await world.wait_until_active()

    assert [lane.metrics.restored_records for lane in router.lanes] == [0, 0]
    for number in range(20):
        await world.deliver([world.event(str(number))])
    world.judge()


async def test_busy_lane_notices_that_its_index_dropped_entries_of_the_window() -> None:
    world = World()
    router = world.boot()
    await world.wait_until_active()
    for number in range(20):
        await world.deliver([world.event(str(number))])
    for lane in router.lanes:
        world.disk.drop_before(world.index_identity(lane.partition), 5)

    for number in range(20, 60):
        world.clock.ms += 1_000
        await world.deliver([world.event(str(number))])
    await world.wait_until_active()
    for number in range(60):
        await world.deliver([world.event(str(number))])

    assert rebuilds_of(router) == 2
    world.judge()


async def test_event_whose_old_copy_the_replay_meets_is_not_counted_for_it() -> None:
    world = World(policy=WindowPolicy(window_ms=64_000, keys_max=1_000_000, time_step_ms=1_000))
    router = world.boot()
    await world.wait_until_active()
    first = world.event("a")
    lane = router.lanes[first.partition]
    await world.deliver([first])
    others = [event for event in map(world.event, "bcdefghijk") if event.partition == lane.partition]
    for other in others[:2]:  # beyond the window: the id is new again
        world.clock.ms += 100_000
        await world.deliver([other])
    world.told.clear()
    committed, before = lane.metrics.tally.accepted, router.totals
    world.log.dice.faults = SimFaults(abort=1.0)
    assert not await world.send([first])
    world.disk.damage(world.index_identity(lane.partition))
    world.log.dice.faults = SimFaults()
    await world.wait_until_active()

    assert lane.metrics.rebuilds == 1
    assert lane.metrics.tally.accepted == committed
    assert router.totals.unknown == before.unknown + 1


class TickingClock(ManualClock):
    """Goes on by two seconds whenever it is looked at."""

    def monotonic(self) -> float:
        self.ms += 2_000
        return super().monotonic()


async def test_long_replay_says_how_far_it_is() -> None:
    world = World()
    world.boot()
    await world.wait_until_active()
    events = [world.event(str(number)) for number in range(1_200)]
    await world.deliver([event for event in events if event.partition == 0][:550])
    await world.crash()
    world.disk.discard(world.index_identity(0))
    world.clock = TickingClock()

    with capture_logs() as lines:
        world.boot()
        await world.wait_until_active()

    progress = [line for line in lines if line["event"] == "lane is restoring"]
    assert [line["records"] for line in progress] == [300, 550]
    markers = 300 // 7  # of the commits of seven before the first line
    end = world.log.partition("events", 0).end
    assert [line["offsets_to_go"] for line in progress] == [end - 300 - markers, 1]


async def test_full_disk_costs_no_rebuild() -> None:
    world = World()
    router = world.boot()
    await world.wait_until_active()
    for number in range(20):
        await world.deliver([world.event(str(number))])

    world.disk.has_room = False
    for number in range(30):
        await world.send([world.event(str(number))])
    world.disk.has_room = True
    await world.wait_until_active()
    for number in range(40):
        await world.deliver([world.event(str(number))])

    assert rebuilds_of(router) == 0
    world.judge()
