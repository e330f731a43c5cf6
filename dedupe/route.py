"""
The seam between the router and whoever decides the events of one partition: a lane of this process, or
one of another worker.

Router.submit -> **Route.target** -> Lane.submit
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dedupe.clock import Deadline
from dedupe.lane import Lane, LaneState, Outcomes
from dedupe.sessions import SessionKey, SessionState
from dedupe.types import Entry, Event, EventKey


class Target(Protocol):
    """Who takes a partition's events now. A Lane is one."""

    def check_room(self, events: int, size_bytes: int, source: str) -> None:
        """Raise LaneNotActiveError or LaneSaturatedError, both retriable, if `submit` would not take it."""

    def submit(
        self, events: Sequence[Event], *, size_bytes: int, received_ms: int, deadline: Deadline
    ) -> "asyncio.Future[Outcomes]":
        """Take one request's events, n >= 1; see Lane.submit."""


class Route(Protocol):
    """How the events of one partition are reached, wherever they are decided at the moment."""

    @property
    def target(self) -> Target:
        """Who decides them now, or would."""

    @property
    def is_serving(self) -> bool:
        """Whether somebody would take an event now."""

    @property
    def has_served(self) -> bool:
        """Whether somebody ever would have since this process began."""

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until somebody takes events; false if that is not to be expected before the deadline."""

    def may_submit_again(self, err: Exception) -> bool:
        """Whether events that failed so may be submitted once more, as harmless as a client's retry."""

    async def session(self, key: SessionKey) -> SessionState | None:
        """Return what is known of a client session, as Lane.session does."""

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """Return at most so many rows of a client, as Lane.sessions_of does."""

    async def find(self, key: EventKey) -> Entry | None:
        """Return where the event of a key is, as Lane.find does."""


class LocalRoute:
    """To a lane that no other process serves while this one does."""

    def __init__(self, lane: Lane) -> None:
        self.target = lane

    @property
    def is_serving(self) -> bool:
        """See Route."""
        return self.target.state is LaneState.ACTIVE

    @property
    def has_served(self) -> bool:
        """See Route."""
        return self.target.has_been_active

    async def wait(self, deadline: Deadline) -> bool:
        """See Route: nobody else would take them, so the client is told at once."""
        return False

    def may_submit_again(self, err: Exception) -> bool:
        """See Route: the client does that, and learns meanwhile what is the matter."""
        return False

    async def session(self, key: SessionKey) -> SessionState | None:
        """See Route."""
        return self.target.session(key)

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """See Route."""
        return self.target.sessions_of(client_hash, count)

    async def find(self, key: EventKey) -> Entry | None:
        """See Route."""
        return self.target.find(key)
