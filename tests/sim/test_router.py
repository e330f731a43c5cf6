"""
Claim: a request is taken whole or not at all, is answered in time and truthfully, and readiness promises no
more than that.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dedupe.model.clock import Deadline
from dedupe.model.errors import (
    DeadlineExceededError,
    DiskFullError,
    LaneNotActiveError,
    LaneSaturatedError,
    NotAppendedError,
)
from dedupe.model.types import Event, NewRecord
from dedupe.partition.lane import Lane
from dedupe.partition.queue import LaneQueue
from dedupe.partition.state import LaneState
from dedupe.submission import Submission
from tests.sim.test_answers import booted, one_of_each_partition, submitted
from tests.sim.world import CLEAN, LIMITS, QUARANTINE, World
from tests.support.submissions import submission_of

BATCH = LIMITS.batch_events_max


def events_of(world: World, partition: int, count: int) -> list[Event]:
    found = (event for event in map(world.event, map(str, range(10 * count))) if event.partition == partition)
    return [next(found) for _ in range(count)]


def held_appends(lane: Lane) -> asyncio.Event:
    """Have a lane's appends wait until the event that is returned is set."""
    may_append = asyncio.Event()
    append = lane._log.append

    async def append_late(records: Sequence[NewRecord]) -> int:
        await may_append.wait()
        return await append(records)

    lane._log.append = append_late  # type: ignore[method-assign]
    return may_append


def records_in(world: World) -> int:
    return sum(len(records) for stream in (CLEAN, QUARANTINE) for records in world.committed(stream))


@pytest.mark.parametrize("number", [0, 1, 2], ids=["first", "second", "quarantine"])
async def test_request_is_refused_whole_if_any_of_its_lanes_has_no_room(number: int) -> None:
    world, router = await booted()
    router.all_lanes[number].queue = LaneQueue(replace(LIMITS, queue_events_max=0))

    with pytest.raises(LaneSaturatedError):
        await submitted(world, router, one_of_each_partition(world), [world.rejected("bad")])

    while any(lane.queue.events for lane in router.all_lanes):
        await asyncio.sleep(0)
    assert router.totals.refused == 3
    await world.crash()
    assert records_in(world) == 0


async def test_requests_that_wait_for_a_lane_are_answered_as_soon_as_it_fails() -> None:
    world, router = await booted()
    lane = router.lanes[0]
    events = events_of(world, 0, BATCH + 1)
    begun, waiting = submitted(world, router, events[:BATCH]), submitted(world, router, events[BATCH:])
    while lane.queue.events != 1:
        await asyncio.sleep(0)
    world.log.partition(CLEAN.name, 0).outage_calls = 10**9

    async with asyncio.timeout(60):
        with pytest.raises(NotAppendedError):
            await begun
        with pytest.raises(LaneNotActiveError):
            await waiting

    await world.crash()


async def test_request_without_a_verdict_in_time_is_not_called_untaken() -> None:
    world, router = await booted()
    lane = router.lanes[0]
    may_append = held_appends(lane)
    request = submitted(world, router, events_of(world, 0, 1), timeout_s=5)

    async with asyncio.timeout(60):
        with pytest.raises(DeadlineExceededError):
            await request

    may_append.set()
    while not lane.metrics.commits:
        await asyncio.sleep(0)
    assert records_in(world) == 1


async def test_request_with_a_bad_event_is_answered_once_that_is_kept_apart() -> None:
    world, router = await booted()
    (quarantine_lane,) = router.quarantine_lanes
    may_append = held_appends(quarantine_lane)
    request = submitted(world, router, events_of(world, 0, 1), [world.rejected("bad")])
    while not router.lanes[0].metrics.commits:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not request.done()

    may_append.set()
    assert (await request).offsets == [1]  # behind the marker of the first fence
    assert records_in(world) == 2


async def test_full_disk_refuses_requests_before_any_effect() -> None:
    world, router = await booted()
    router.has_disk_room = False

    with pytest.raises(DiskFullError):
        await submitted(world, router, events_of(world, 0, 1))

    assert records_in(world) == 0


async def test_lanes_that_are_told_to_stop_finish_what_they_have_and_take_nothing_more() -> None:
    world, router = await booted()
    request = submitted(world, router, events_of(world, 0, 3 * BATCH))
    await asyncio.sleep(0)
    router.drain()

    with pytest.raises(LaneNotActiveError, match="being stopped"):
        router.lanes[0].check_capacity(submission_of(events_of(world, 0, 1)))
    with pytest.raises(LaneNotActiveError, match="shutting down"):
        await submitted(world, router, events_of(world, 1, 1))

    assert len((await request).offsets) == 3 * BATCH


async def test_gateway_is_ready_once_every_lane_has_served_and_until_it_drains() -> None:
    world = World()
    await world.start()
    await world.crash()
    world.log.partition(QUARANTINE.name, 0).outage_calls = 10**9
    router = world.boot()
    while any(lane.state is not LaneState.ACTIVE for lane in router.lanes):
        await asyncio.sleep(0)
    assert not router.is_ready

    world.log.partition(QUARANTINE.name, 0).outage_calls = 0
    await world.wait_until_active()
    assert router.is_ready

    router.is_draining = True
    assert not router.is_ready
    await world.crash()


async def test_events_of_several_sources_are_submitted_apart() -> None:
    world, router = await booted()
    asked: list[list[str]] = []
    for lane in router.all_lanes:
        submit = lane.submit

        def noted(submission: Submission, submit: Any = submit) -> Any:
            asked.append([event.source for event in submission.events])
            return submit(submission)

        lane.submit = noted  # type: ignore[method-assign]
    names = ["ios", "web", "ios", "web", "web", "ios"] * 4
    events = [world.event(f"{number}", source=source) for number, source in enumerate(names)]
    bad = [world.rejected("one"), world.rejected("other")._replace(source="ios")]
    deadline = Deadline(world.clock, 60.0)

    outcomes = await router.submit(
        events, bad, received_ms=world.clock.now_ms(), deadline=deadline, has_several_sources=True
    )

    assert all(len(set(sources)) == 1 for sources in asked)
    assert sorted(source for sources in asked for source in sources) == sorted([*names, "sim", "ios"])
    assert sum(len(records) for records in world.committed(CLEAN)) == len(events)
    places = [(event.partition, offset) for event, offset in zip(events, outcomes.offsets, strict=True)]
    assert len(set(places)) == len(events)
    again = await router.submit(
        events, bad, received_ms=world.clock.now_ms(), deadline=deadline, has_several_sources=True
    )
    assert again.offsets == outcomes.offsets
    tallies = dict(router.answers.sources.top(5)[0])
    assert (tallies["ios"].accepted, tallies["ios"].duplicates, tallies["ios"].rejected) == (12, 12, 2)
