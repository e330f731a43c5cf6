"""Claim: a response of another worker that cannot be decoded is retriable."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedupe.cluster.codec import SESSION
from dedupe.cluster.links import PeerLink
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.cluster.route import GroupRoute
from dedupe.model.clock import SystemClock
from dedupe.model.errors import LaneNotActiveError
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState


class Garbler:
    """A worker that serves the lane and responds so to every request."""

    def __init__(self, response: object) -> None:
        self._response = response

    async def request(self, kind: str, body: Any, timeout_s: float) -> object:
        return self._response

    def server_of(self, lane: int) -> PeerLink:
        return cast(PeerLink, self)


REQUESTS: dict[str, Callable[[GroupRoute], Awaitable[object]]] = {
    "session": lambda route: route.session(bytes(32)),
    "sessions of a client": lambda route: route.sessions_of(bytes(16), 9),
    "find": lambda route: route.find(bytes(16)),
}


@pytest.mark.parametrize("response", [5, [1], [[1]]])
@pytest.mark.parametrize("request_of", REQUESTS)
async def test_response_that_cannot_be_decoded_is_retriable(request_of: str, response: object) -> None:
    away = cast(Lane, SimpleNamespace(state=LaneState.UNASSIGNED))
    route = GroupRoute(0, away, cast(Any, Garbler(response)))
    with pytest.raises(LaneNotActiveError):
        await REQUESTS[request_of](route)


class Recorder:
    """A lane that notes which sessions are said to be over."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    async def session(self, _key: bytes, *, is_ended: bool = False) -> None:
        self.ended.append(is_ended)


class Handed:
    """A worker that serves the lane: its handler gets what it is asked."""

    def __init__(self, lane: Recorder) -> None:
        manager = SimpleNamespace(lanes=[lane])
        self.handler = PeerRequestHandler(cast(Any, manager), SystemClock(), lambda: True)

    async def request(self, kind: str, body: Any, timeout_s: float) -> object:
        return await self.handler.on_request(kind, body)

    def server_of(self, lane: int) -> PeerLink:
        return cast(PeerLink, self)


async def test_end_of_a_session_is_passed_on_to_the_worker_that_serves_its_lane() -> None:
    lane = Recorder()
    worker = Handed(lane)
    route = GroupRoute(0, cast(Lane, SimpleNamespace(state=LaneState.UNASSIGNED)), cast(Any, worker))
    await route.session(bytes(32), is_ended=True)
    await route.session(bytes(32))
    await worker.handler.on_request(SESSION, [0, bytes(32)])  # from a worker of an earlier version
    assert lane.ended == [True, False, False]
