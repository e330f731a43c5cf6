"""
GroupRoute: the route of requests to one lane of a group, in this process or in the worker that serves it.

A submission that a worker has not decided is submitted again to its successor, whose index decides it:
clients do not notice that a lane moves.

Router.submit -> **GroupRoute.submit** -> Lane.submit, or PeerLink.submit
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dedupe.cluster.codec import FIND, SESSION, SESSIONS, decode_entry, decode_rows, decode_state
from dedupe.cluster.lane_manager import LaneManager
from dedupe.cluster.links import PeerLink
from dedupe.decide.sessions import SessionKey, SessionState
from dedupe.model.clock import Deadline
from dedupe.model.errors import LaneNotActiveError, NotAppendedError, OutcomeUnknownError
from dedupe.model.types import Entry, EventKey
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState
from dedupe.submission import Outcomes, Submission

Decoded = TypeVar("Decoded")

RESPONSE_TIMEOUT_S = 2.0
"""The time limit of a request for a session or an entry, within the deadline of the HTTP request."""


class GroupRoute:
    """The route to one lane; see Route."""

    def __init__(self, number: int, lane: Lane, manager: LaneManager) -> None:
        self._number = number
        self._lane = lane
        self._manager = manager
        self._has_served = False

    def check_capacity(self, submission: Submission) -> None:
        (self._owner() or self._lane).check_capacity(submission)

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        link = self._owner()
        return self._lane.submit(submission) if link is None else link.submit(self._number, submission)

    @property
    def is_serving(self) -> bool:
        is_serving = self._lane.state is LaneState.ACTIVE or self._owner() is not None
        self._has_served = self._has_served or is_serving
        return is_serving

    @property
    def has_served(self) -> bool:
        return self._has_served or self.is_serving

    async def wait(self, deadline: Deadline) -> bool:
        while not self.is_serving:
            if deadline.is_over or not self._manager.is_expected(self._number):
                return False
            await self._manager.directory.wait_for_change(deadline.remaining_s)
        return True

    def may_submit_again(self, err: Exception) -> bool:
        return isinstance(err, LaneNotActiveError | NotAppendedError | OutcomeUnknownError)

    async def session(self, key: SessionKey, *, is_ended: bool = False) -> SessionState | None:
        link = self._owner()
        if link is None:
            return await self._lane.session(key, is_ended=is_ended)
        return await _request(link, SESSION, [self._number, key, is_ended], decode_state)

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        link = self._owner()
        if link is None:
            return await self._lane.sessions_of(client_hash, count)
        return await _request(link, SESSIONS, [self._number, client_hash, count], decode_rows)

    async def find(self, key: EventKey) -> Entry | None:
        link = self._owner()
        if link is None:
            return await self._lane.find(key)
        return await _request(link, FIND, [self._number, key], decode_entry)

    def _owner(self) -> PeerLink | None:
        """
        Return the link to the worker that serves the lane.

        None if this process serves it, or no worker does: then this process's lane raises the reason.
        """
        return None if self._lane.state is LaneState.ACTIVE else self._manager.server_of(self._number)


async def _request(link: PeerLink, kind: str, body: list[Any], decode: Callable[[Any], Decoded]) -> Decoded:
    """Return a worker's decoded response. Raises GatewayError; LaneNotActiveError if it cannot be decoded."""
    response = await link.request(kind, body, RESPONSE_TIMEOUT_S)
    try:
        return decode(response)
    except (TypeError, ValueError) as err:
        raise LaneNotActiveError(f"another worker's response cannot be decoded: {err!r}") from err
