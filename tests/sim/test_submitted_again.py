"""
Claim: a request whose lanes are elsewhere is submitted again as a patient client would: in time, truthfully,
and without holding the loop.
"""

import asyncio
from collections.abc import Callable

import pytest

from dedupe.model.clock import Deadline
from dedupe.model.errors import (
    DeadlineExceededError,
    LaneNotActiveError,
    LaneSaturatedError,
    OutcomeUnknownError,
)
from dedupe.partition.lane import Lane
from dedupe.submission import Outcomes, Submission
from tests.sim.test_answers import booted, one_of_each_partition, submitted
from tests.sim.world import World

ROUND_TRIP_S = 0.001


class Way:
    """To a lane over a network that does with one submission after another what it is told, then passes."""

    def __init__(self, lane: Lane, *fates: "Callable[[Way, asyncio.Future[Outcomes]], None]") -> None:
        self.lane = lane
        self.session, self.sessions_of, self.find = lane.session, lane.sessions_of, lane.find
        self.submissions = 0
        self.is_back = True
        self._fates = list(fates)

    @property
    def is_serving(self) -> bool:
        return self.is_back

    @property
    def has_served(self) -> bool:
        return self.lane.has_served

    def check_capacity(self, submission: Submission) -> None:
        if not self.is_back:
            raise LaneNotActiveError("out of reach")

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        self.submissions += 1
        fate = self._fates[0] if self._fates else None
        if fate is not refuses_always:
            self._fates = self._fates[1:]
        if fate is has_no_room:
            raise LaneSaturatedError("too much is under way")
        answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        if fate in (refuses_always, refuses_and_goes):
            asyncio.get_running_loop().call_later(ROUND_TRIP_S, fate, self, answer)
            return answer
        decided = self.lane.submit(submission)
        if fate is None:
            return decided
        decided.add_done_callback(lambda _: fate(self, answer))
        return answer

    async def wait(self, deadline: Deadline) -> bool:
        if not self.is_back:
            await asyncio.sleep(deadline.remaining_s)
        return self.is_back

    def may_submit_again(self, err: Exception) -> bool:
        return isinstance(err, LaneNotActiveError | OutcomeUnknownError)


def has_no_room(_way: Way, _answer: "asyncio.Future[Outcomes]") -> None:
    """It is refused before it is sent."""


def refuses_always(_way: Way, answer: "asyncio.Future[Outcomes]") -> None:
    """Its owner does not serve, although it says so, this time and from now on."""
    if not answer.done():
        answer.set_exception(LaneNotActiveError("does not serve"))


def refuses_and_goes(way: Way, answer: "asyncio.Future[Outcomes]") -> None:
    """Its owner does not serve any more, and nobody else does."""
    way.is_back = False
    refuses_always(way, answer)


def loses_answer(_way: Way, answer: "asyncio.Future[Outcomes]") -> None:
    """It is decided, and the connection breaks."""
    answer.set_exception(OutcomeUnknownError("lost"))


def loses_answer_for_good(way: Way, answer: "asyncio.Future[Outcomes]") -> None:
    """The same, and nobody serves any more."""
    way.is_back = False
    loses_answer(way, answer)


def committed(world: World) -> int:
    return sum(map(len, world.committed()))


async def test_lost_answer_costs_no_error_and_no_second_copy() -> None:
    world, router = await booted()
    router.routes = [Way(router.lanes[0], loses_answer, loses_answer), Way(router.lanes[1])]

    outcomes = await submitted(world, router, one_of_each_partition(world))

    assert outcomes.offsets == [1, 1]  # behind the marker of the first fence
    assert committed(world) == 2
    assert (router.totals.received, router.totals.unknown) == (2, 0)


async def test_share_without_room_makes_the_other_ones_outcome_unknown() -> None:
    world, router = await booted()
    router.routes = [Way(router.lanes[0]), Way(router.lanes[1], has_no_room)]

    with pytest.raises(OutcomeUnknownError):
        await submitted(world, router, one_of_each_partition(world))

    assert (router.totals.unknown, router.totals.refused) == (2, 0)
    assert committed(world) == 1


async def test_request_that_finds_no_room_on_its_way_is_untaken() -> None:
    world, router = await booted()
    router.routes = [Way(lane, has_no_room) for lane in router.lanes]

    with pytest.raises(LaneSaturatedError):
        await submitted(world, router, one_of_each_partition(world))

    assert (router.totals.unknown, router.totals.refused) == (0, 2)
    assert committed(world) == 0


@pytest.mark.regression("A request in doubt was called untaken after its second submission was refused.")
async def test_doubt_of_the_first_submission_is_not_forgotten_when_the_second_is_refused() -> None:
    world, router = await booted()
    event = one_of_each_partition(world)[:1]
    router.routes = [Way(router.lanes[0], loses_answer, refuses_and_goes), Way(router.lanes[1])]

    with pytest.raises(OutcomeUnknownError):
        await submitted(world, router, event, timeout_s=2)

    assert (router.totals.unknown, router.totals.refused) == (1, 0)
    assert committed(world) == 1


async def test_doubt_is_not_forgotten_when_nobody_serves_any_more() -> None:
    world, router = await booted()
    router.routes = [Way(router.lanes[0], loses_answer_for_good), Way(router.lanes[1])]

    with pytest.raises(OutcomeUnknownError):
        await submitted(world, router, one_of_each_partition(world)[:1], timeout_s=2)

    assert router.totals.unknown == 1


async def test_owner_that_only_says_that_it_serves_is_asked_patiently_and_not_for_ever() -> None:
    world, router = await booted()
    way = Way(router.lanes[0], refuses_always)
    router.routes = [way, Way(router.lanes[1])]

    async with asyncio.timeout(60):
        with pytest.raises((LaneNotActiveError, DeadlineExceededError)):
            await submitted(world, router, one_of_each_partition(world)[:1], timeout_s=2)

    assert 2 < way.submissions < 200


@pytest.mark.regression("A share was submitted again after its deadline.")
async def test_share_that_fails_late_is_not_submitted_after_the_deadline() -> None:
    world, router = await booted()
    slow, way = Way(router.lanes[0]), Way(router.lanes[1], refuses_always)
    router.routes = [slow, way]
    router.lanes[0]._log.append = lambda _: asyncio.Event().wait()  # type: ignore[method-assign,assignment]

    async with asyncio.timeout(60):
        with pytest.raises(DeadlineExceededError):
            await submitted(world, router, one_of_each_partition(world), timeout_s=2)

    assert way.submissions == 1
