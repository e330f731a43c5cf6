"""Claim: "nothing was taken" is only said of requests of which nothing was, and every waiter is answered."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.process.readiness import readiness_of
from dedupe.model.clock import Deadline
from dedupe.model.errors import LaneNotActiveError, OutcomeUnknownError
from dedupe.model.types import Event
from dedupe.partition.queue import LaneQueue
from dedupe.partition.state import LaneState
from dedupe.router import Router
from dedupe.submission import Outcomes
from tests.sim.world import CLEAN, FOREVER_S, LIMITS, World
from tests.support.sim.faults import SimFaults


async def booted() -> tuple[World, Router]:
    world = World()
    router = world.boot()
    await world.wait_until_active()
    return world, router


def submitted(
    world: World,
    router: Router,
    events: Sequence[Event],
    rejected: Sequence[Event] = (),
    *,
    timeout_s: float = FOREVER_S,
) -> "asyncio.Task[Outcomes]":
    deadline = Deadline(world.clock, timeout_s)
    return asyncio.ensure_future(
        router.submit(events, rejected, received_ms=world.clock.now_ms(), deadline=deadline)
    )


def one_of_each_partition(world: World) -> list[Event]:
    events = {event.partition: event for event in (world.event(str(n)) for n in range(20))}
    return [events[0], events[1]]


@pytest.mark.regression("A request of which a part was committed was called untaken.")
async def test_full_quarantine_leaves_the_outcome_of_a_committed_request_unknown() -> None:
    world, router = await booted()
    await world.deliver([world.event("a")])
    (quarantine_lane,) = router.quarantine_lanes
    roomy, quarantine_lane.queue = quarantine_lane.queue, LaneQueue(replace(LIMITS, queue_events_max=0))
    request = [world.event("a", content="other"), world.event("b")]

    with pytest.raises(OutcomeUnknownError):
        await submitted(world, router, request)

    quarantine_lane.queue = roomy
    await world.deliver(request)
    world.judge()


async def test_lane_that_ends_leaves_the_outcome_of_the_other_lanes_part_unknown() -> None:
    world, router = await booted()
    request = submitted(world, router, one_of_each_partition(world))
    await asyncio.sleep(0)
    world.end_lane(1)

    with pytest.raises(OutcomeUnknownError):
        await request


async def test_quarantine_that_ends_meanwhile_is_not_waited_for() -> None:
    world, router = await booted()
    rejected = world.rejected("no object")
    request = submitted(world, router, [world.event("a")], [rejected])
    await asyncio.sleep(0)
    world.end_lane(2)

    async with asyncio.timeout(5):
        with pytest.raises(OutcomeUnknownError):
            await request


async def test_request_that_no_lane_has_begun_was_not_taken() -> None:
    world, router = await booted()
    request = submitted(world, router, one_of_each_partition(world))
    await asyncio.sleep(0)
    world.end_lane(0)
    world.end_lane(1)

    async with asyncio.timeout(5):
        with pytest.raises(LaneNotActiveError):
            await request


@pytest.mark.regression("A request was called untaken although its first batch was committed.")
async def test_lane_that_ends_between_two_batches_of_a_request_leaves_its_outcome_unknown() -> None:
    world, router = await booted()
    events = [event for event in (world.event(str(n)) for n in range(60)) if event.partition == 0]
    request = submitted(world, router, events)
    lane = router.lanes[0]
    while not lane.metrics.commits:
        await asyncio.sleep(0)
    world.end_lane(0)

    with pytest.raises(OutcomeUnknownError):
        await request

    assert lane.metrics.tally.accepted == LIMITS.batch_events_max
    assert lane.metrics.tally.refused == len(events) - LIMITS.batch_events_max


@pytest.mark.regression("Requests waited for ever for a lane that was cancelled.")
async def test_cancelled_lane_answers_the_batch_that_it_was_committing() -> None:
    world, router = await booted()
    request = submitted(world, router, [world.event("a")])
    lane = router.lanes[world.event("a").partition]
    while world.log.partition(lane.topic, lane.partition).in_flight is None:
        await asyncio.sleep(0)
    world.end_lane(lane.partition)

    async with asyncio.timeout(5):
        with pytest.raises(OutcomeUnknownError):
            await request

    assert (router.totals.received, router.totals.unknown, router.in_flight) == (1, 1, 0)


@pytest.mark.regression("A log that did not answer was told to nobody until somebody sent.")
async def test_silent_log_is_told_within_two_rounds_although_nobody_sends() -> None:
    world, router = await booted()
    times = world.times

    def share() -> float:
        return float(readiness_of(router)["share"])

    world.log.partition(CLEAN.name, 1).outage_calls = 10**9
    await asyncio.sleep(2 * times.maintenance_s)
    assert (router.outage, share(), router.lanes[1].state) == (None, 0.5, LaneState.ACTIVE)

    world.log.partition(CLEAN.name, 0).outage_calls = 10**9
    await asyncio.sleep(2 * times.maintenance_s)
    assert router.outage == "no event can be stored: the log has not answered since 2023-11-14T22:13:20Z"
    assert (share(), router.is_ready) == (0, True)  # a front's own page would be no better an answer

    world.log.partition(CLEAN.name, 0).outage_calls = 0
    await asyncio.sleep(2 * times.maintenance_again_s)
    assert router.outage is None
    assert share() == 0.5


async def test_one_request_without_an_answer_is_no_outage() -> None:
    world, router = await booted()
    for lane in router.lanes:
        world.log.partition(CLEAN.name, lane.partition).outage_calls = 1
    for _ in range(round(3 * world.times.maintenance_s)):
        await asyncio.sleep(1)
        assert router.outage is None


async def test_outage_is_told_in_one_sentence_until_a_partition_serves_again() -> None:
    world, router = await booted()
    assert router.outage is None
    world.log.rng.faults = SimFaults(unavailable=1.0)
    await asyncio.gather(*(world.send([world.event(name)]) for name in "abcdef"))
    while any(lane.state is LaneState.ACTIVE for lane in router.lanes):
        await asyncio.sleep(0)

    assert router.outage is not None
    assert "not been available since 2023-11-14T22:13:20Z: the log" in router.outage

    world.log.rng.faults = SimFaults()
    await world.wait_until_active()
    assert router.outage is None
