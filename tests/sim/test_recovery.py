"""Claim: a lane comes back by itself from what befalls its log, and at no higher price than it must."""

import asyncio
from collections.abc import Sequence
from itertools import count, islice
from random import Random

import pytest
from structlog.testing import capture_logs

from app.admin.stats import progress_of
from dedupe.decide.window import WindowPolicy
from dedupe.model.errors import IndexCorruptError
from dedupe.model.types import Entry, Event, EventKey
from dedupe.partition.state import LaneState
from dedupe.router import Router
from dedupe.storage.index import IndexUpdate
from tests.sim.world import CLEAN, ManualClock, World
from tests.support.sim.faults import SimFaults
from tests.support.sim.memory_index import MemoryIndex


def rebuilds_of(router: Router) -> int:
    return sum(lane.metrics.rebuilds for lane in router.all_lanes)


async def test_commit_that_is_seen_late_costs_no_rebuild() -> None:
    world = World(faults=SimFaults(seed=1, delay_sight=1.0, refuse=0.3))
    router = world.boot()
    await world.wait_until_active()

    for number in range(60):
        await world.send([world.event(str(number))])
        await world.wait_until_active()

    assert sum(lane.metrics.failures for lane in router.all_lanes) > 5
    assert rebuilds_of(router) == 0
    world.judge()


@pytest.mark.regression("A busy lane never looked whether its index still held the window.")
async def test_busy_lane_notices_that_its_index_dropped_entries_of_the_window() -> None:
    world = World()
    router = world.boot()
    await world.wait_until_active()
    for number in range(20):
        await world.deliver([world.event(str(number))])
    for lane in router.lanes:
        world.disk.drop_before(world.index_identity(lane.partition), 5)

    for number in range(20, 60):
        await asyncio.sleep(world.times.maintenance_s / 20)
        await world.deliver([world.event(str(number))])
    await world.wait_until_active()
    for number in range(60):
        await world.deliver([world.event(str(number))])

    assert rebuilds_of(router) == 2
    world.judge()


@pytest.mark.regression("An index served after a cleaner had deleted its older write-ahead logs.")
async def test_index_with_a_hole_in_its_write_ahead_log_is_rebuilt() -> None:
    world = World()
    world.boot()
    await world.wait_until_active()
    for number in range(40):
        await world.deliver([world.event(str(number))])
    await world.crash()
    for partition in range(2):
        world.disk.lose_middle(world.index_identity(partition), 5)

    router = world.boot()
    await world.wait_until_active()
    for number in range(40):
        await world.deliver([world.event(str(number))])

    assert [lane.metrics.rebuilds for lane in router.lanes] == [1, 1]
    world.judge()


@pytest.mark.regression("A rebuild counted an old copy for an event in doubt.")
async def test_event_whose_old_copy_the_replay_meets_is_not_counted_for_it() -> None:
    world = World(policy=WindowPolicy(window_ms=64_000, keys_max=1_000_000, time_step_ms=1_000))
    first = world.event("a")
    world.clock.ms += 10 * DAY_MS
    world.intrude(first.partition)  # so new that by the timestamps alone the window starts here
    world.clock.ms -= 10 * DAY_MS
    world.note_skips()
    router = await world.start()
    lane = router.lanes[first.partition]
    await world.deliver([first])
    others = [event for event in map(world.event, "bcdefghijk") if event.partition == lane.partition]
    for other in others[:2]:  # beyond the window: the id is new again
        world.clock.ms += 100_000
        await world.deliver([other])
    world.told.clear()
    committed, unknown = lane.metrics.tally.accepted, lane.metrics.tally.unknown
    world.log.rng.faults = SimFaults(delay_append=1.0)
    assert not await world.send([first])
    world.log.partition(CLEAN.name, first.partition).in_flight = None  # it never arrives
    world.disk.damage(world.index_identity(lane.partition))
    world.log.rng.faults = SimFaults()
    await world.wait_until_active()

    assert lane.metrics.rebuilds == 1
    assert lane.metrics.tally.accepted == committed
    assert lane.metrics.tally.unknown == unknown + 1


DAY_MS = 86_400_000
BY_TIME = WindowPolicy(window_ms=20_000, keys_max=1_000_000, time_step_ms=1_000)
BY_KEYS = WindowPolicy(window_ms=7 * 86_400_000, keys_max=64)


async def with_history(policy: WindowPolicy, records: int = 400) -> tuple[World, list[Event]]:
    """Return a world with a second between its events, all of partition 0, and these events."""
    world = World(policy=policy)
    await world.start()
    names = (str(number) for number in range(10 * records))
    events = [event for event in map(world.event, names) if event.partition == 0][:records]
    for event in events:
        world.clock.ms += 1_000
        await world.deliver([event])
    world.told.clear()
    return world, events


@pytest.mark.parametrize(("policy", "remembered"), [(BY_TIME, 20), (BY_KEYS, 64)])
async def test_rebuild_reads_from_the_windows_start_and_forgets_what_was_forgotten(
    policy: WindowPolicy, remembered: int
) -> None:
    world, events = await with_history(policy)
    await world.crash()
    world.disk.discard(world.index_identity(0))

    lane = (await world.start()).lanes[0]

    assert lane.metrics.restored_records <= remembered + 20
    assert remembered <= lane.partition_index.window.keys <= remembered + 2
    for event in events[-remembered:]:
        await world.deliver([event])
    assert lane.metrics.tally.duplicates == remembered
    await world.deliver(events[:1])
    assert lane.metrics.tally.accepted == 1


@pytest.mark.parametrize("policy", [BY_TIME, BY_KEYS])
@pytest.mark.parametrize(
    "other",
    [
        WindowPolicy(window_ms=40_000, keys_max=1_000_000, time_step_ms=1_000),
        WindowPolicy(window_ms=10_000, keys_max=1_000_000, time_step_ms=1_000),
        WindowPolicy(window_ms=7 * 86_400_000, keys_max=100),
        WindowPolicy(window_ms=7 * 86_400_000, keys_max=40),
    ],
)
async def test_other_bounds_need_no_rebuild_where_the_index_reaches_back_far_enough(
    policy: WindowPolicy, other: WindowPolicy
) -> None:
    world, events = await with_history(policy)
    await world.crash()
    world.policy = other._replace(time_step_ms=policy.time_step_ms)

    lane = (await world.start()).lanes[0]

    assert (lane.metrics.rebuilds, lane.metrics.restored_records) == (0, 0)
    remembered = min(400, other.keys_max, other.window_ms // 1_000)
    for event in events[-remembered:]:
        await world.deliver([event])
    assert lane.metrics.tally.duplicates == remembered


@pytest.mark.regression("An update of the index that failed moved the window alone.")
async def test_window_after_an_unexpected_error_of_the_index_is_that_of_a_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await with_history(BY_TIME, records=3)
    assert world.router is not None
    lane, apply = world.router.lanes[0], MemoryIndex.apply

    def fail_once(index: MemoryIndex, update: IndexUpdate) -> None:
        if update.entries and not lane.metrics.failures:
            raise RuntimeError("nobody expects it")
        apply(index, update)

    monkeypatch.setattr(MemoryIndex, "apply", fail_once)
    world.clock.ms += 1_000  # so that the next event begins a step
    await world.deliver([next(event for event in map(world.event, "abcdefgh") if event.partition == 0)])
    steps = lane.partition_index.index.steps
    assert (lane.metrics.failures, lane.metrics.rebuilds, len(steps)) == (1, 0, 4)
    await world.crash()
    world.disk.discard(world.index_identity(0))

    lane = (await world.start()).lanes[0]

    assert lane.partition_index.index.steps == steps


async def test_longer_window_than_a_rebuilt_index_reaches_is_read_from_the_log() -> None:
    world, events = await with_history(BY_TIME)
    await world.crash()
    world.disk.discard(world.index_identity(0))
    await world.start()
    await world.crash()
    world.policy = BY_TIME._replace(window_ms=100_000)

    lane = (await world.start()).lanes[0]

    assert lane.metrics.rebuilds == 1
    for event in events[-100:]:
        await world.deliver([event])
    assert lane.metrics.tally.duplicates == 100


async def test_rebuild_finds_its_start_behind_a_record_that_is_passed_over() -> None:
    world = World(policy=BY_KEYS)
    await world.start()  # an empty log, so that nobody has to look for client sessions in it
    await world.crash()
    world.intrude(0)
    world.note_skips()
    await world.start()
    events = [event for event in map(world.event, map(str, range(600))) if event.partition == 0]
    for event in events:
        world.clock.ms += 1
        await world.deliver([event])
    await world.crash()
    world.disk.discard(world.index_identity(0))

    lane = (await world.start()).lanes[0]

    assert lane.metrics.restored_records <= 64 + 20
    await world.deliver(events[-64:])
    assert lane.metrics.tally.duplicates == 64


@pytest.mark.regression("An index that was just rebuilt was taken for too short, and rebuilt again.")
async def test_index_that_was_just_rebuilt_is_not_rebuilt_again() -> None:
    rng = Random(5)
    world = World(policy=WindowPolicy(window_ms=7 * DAY_MS, keys_max=640))
    await world.start()
    events = (event for event in map(world.event, map(str, count())) if event.partition == 0)
    sent = 0
    while sent < 960:  # records are not evenly spread over the offsets, so none is found at once
        size = rng.choice((1, 1, 1, 7)) if sent // 128 % 2 else 7
        await world.deliver(list(islice(events, size)))
        sent += size
    await world.crash()
    world.disk.discard(world.index_identity(0))

    for _ in range(20):
        lane = (await world.start()).lanes[0]
        assert lane.metrics.rebuilds == 0
        await world.deliver(list(islice(events, rng.choice((1, 3)))))
        await world.crash()


async def test_log_that_deletes_inside_the_window_is_told_in_the_windows_length() -> None:
    world, events = await with_history(WindowPolicy(window_ms=7 * 86_400_000, keys_max=1_000_000))
    lane = world.router.lanes[0] if world.router else None
    assert lane is not None
    assert lane.window_seconds == 7 * 86_400
    places = [record.offset for record in world.committed()[0]]
    world.trim(0, places[300])

    with capture_logs() as lines:
        world.clock.ms += 60_000
        await asyncio.sleep(2 * world.times.maintenance_s)
        for event in map(world.event, ("x1", "x2", "x3", "x4", "x5", "x6")):
            await world.deliver([event])
        for _ in range(20):
            await asyncio.sleep(0)

    assert lane.window_seconds < 400
    assert [line["event"] for line in lines if "deleted events inside the window" in line["event"]]
    before = lane.metrics.tally.accepted
    await world.deliver(events[:1])
    assert lane.metrics.tally.accepted == before + 1


@pytest.mark.regression("A log that had lost everything was told with a whole window.")
async def test_log_that_lost_all_it_had_is_told_in_the_windows_length_until_a_window_has_passed() -> None:
    world, _ = await with_history(BY_TIME, 5)
    world.clock.ms += 3_000
    world.trim(0, world.log.partition("events", 0).end)
    await world.crash()

    lane = (await world.start()).lanes[0]

    assert lane.metrics.rebuilds == 1
    assert lane.window_seconds == 3.0
    world.clock.ms += 90_000
    assert lane.window_seconds == 20.0


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
    records = [line["records"] for line in progress]
    assert records == [200, 400]
    end = world.log.partition("events", 0).end
    assert [line["offsets_to_go"] for line in progress] == [end - 1 - count for count in records]


async def test_replay_tells_how_long_it_will_take() -> None:
    world = World()
    world.boot()
    await world.wait_until_active()
    events = [world.event(str(number)) for number in range(1_200)]
    await world.deliver([event for event in events if event.partition == 0][:550])
    await world.crash()
    world.disk.discard(world.index_identity(0))
    world.clock = TickingClock()
    told = []

    router = world.boot()
    lane = router.lanes[0]
    while lane.state is not LaneState.ACTIVE:
        if (restoring := lane.recovery.restoring) is not None:
            told.append(restoring)
        await asyncio.sleep(0)

    assert lane.recovery.restoring is None
    halfway = next(restoring for restoring in told if restoring.applied > restoring.start)
    assert 0 < halfway.ratio < 1
    assert halfway.remaining_s is not None
    pace = (halfway.applied - halfway.start) / halfway.seconds
    assert halfway.remaining_s == pytest.approx((halfway.end - halfway.applied) / pace)
    assert halfway.seconds < 3600  # since it began
    assert progress_of(lane)["progress"] == 1.0


@pytest.mark.regression("A full disk cost a rebuild of the index.")
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


async def test_index_that_is_only_found_damaged_when_it_is_asked_is_rebuilt_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, events = await with_history(BY_TIME, 5)
    damaged = world.disk._disks["events", 0, 0]
    lookup = MemoryIndex.lookup

    def lookup_unless_damaged(index: MemoryIndex, keys: Sequence[EventKey]) -> list[Entry | None]:
        if index._disk is damaged:
            raise IndexCorruptError("a block cannot be read")
        return lookup(index, keys)

    monkeypatch.setattr(MemoryIndex, "lookup", lookup_unless_damaged)
    for _ in range(100):
        if await world.send(events):
            break
        await asyncio.sleep(1)

    assert world.router is not None
    assert rebuilds_of(world.router) == 1
    world.judge()
