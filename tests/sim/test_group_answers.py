"""Claim: a request whose lanes move is answered in time, and never wrongly told that nothing was taken."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline
from dedupe.model.errors import GatewayError, LaneNotActiveError, LaneSaturatedError, OutcomeUnknownError
from dedupe.model.types import Event
from dedupe.submission import Outcomes, Submission
from tests.sim.test_router import events_of
from tests.sim.world import World

Answer = Callable[[Sequence[Event]], Outcomes]


class ScriptedRoute:
    """A lane that moves: it answers each submission as the script says, the last entry for ever."""

    is_serving = has_served = True

    def __init__(self, *script: GatewayError | None, is_refusing: bool = False) -> None:
        self.script = list(script)
        self.is_refusing = is_refusing
        self.submissions = 0

    def check_capacity(self, submission: Submission) -> None:
        return

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        self.submissions += 1
        assert self.submissions < 1000, "without an end"
        err = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if err is not None and self.is_refusing:
            raise err
        answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        if err is None:
            count = len(submission.events)
            answer.set_result(Outcomes([Admission.NEW] * count, [7] * count))
        else:
            answer.set_exception(err)
        return answer

    async def wait(self, deadline: Deadline) -> bool:
        await asyncio.sleep(0.01)
        return True

    def may_submit_again(self, err: Exception) -> bool:
        return isinstance(err, LaneNotActiveError | OutcomeUnknownError)


async def submit(*routes: ScriptedRoute) -> Outcomes:
    """Send one event by each route."""
    world = World()
    router = world.build()
    router.routes = routes  # type: ignore[assignment] # what these tests need of a Route
    events = [event for lane in range(len(routes)) for event in events_of(world, lane, 1)]
    return await router.submit(events, [], received_ms=0, deadline=Deadline(world.clock, 0.5))


async def test_refusals_without_end_end_with_the_deadline() -> None:
    route = ScriptedRoute(LaneNotActiveError("it moves"))
    began = asyncio.get_running_loop().time()
    with pytest.raises(LaneNotActiveError):
        await submit(route)

    assert asyncio.get_running_loop().time() - began < 0.6
    assert route.submissions > 2


async def test_refusal_after_an_unknown_outcome_is_an_unknown_outcome() -> None:
    route = ScriptedRoute(OutcomeUnknownError("the link broke"), LaneNotActiveError("it moves"))
    with pytest.raises(OutcomeUnknownError):
        await submit(route)


async def test_refusal_after_another_lane_has_taken_its_share_is_an_unknown_outcome() -> None:
    taking, full = ScriptedRoute(None), ScriptedRoute(LaneSaturatedError("too much"), is_refusing=True)
    with pytest.raises(OutcomeUnknownError):
        await submit(taking, full)


async def test_refusal_by_all_lanes_is_one() -> None:
    full = [ScriptedRoute(LaneSaturatedError("too much"), is_refusing=True) for _ in range(2)]
    with pytest.raises(LaneSaturatedError):
        await submit(*full)


async def test_unknown_outcome_is_found_out_by_submitting_again() -> None:
    assert await submit(ScriptedRoute(OutcomeUnknownError("the link broke"), None)) == ([Admission.NEW], [7])
