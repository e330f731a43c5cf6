"""
GroupRoute: the way to one lane of a group, to this process or to whichever worker serves it now.

The group is its own best retrying client: what a worker left undecided is submitted again to its
successor, whose index decides, so nobody outside need see that a lane has moved.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from dedupe.clock import Deadline
from dedupe.errors import LaneNotActiveError, OutcomeUnknownError
from dedupe.group.codec import (
    FIND,
    SESSION,
    SESSIONS,
    heard_entry,
    heard_rows,
    heard_state,
    told_key,
)
from dedupe.group.links import Link
from dedupe.lane import Lane, LaneState
from dedupe.sessions import SessionKey, SessionState
from dedupe.submission import Outcomes, Submission, SubmissionTarget
from dedupe.types import Entry, EventKey

Heard = TypeVar("Heard")

ANSWER_S = 2.0
"""How long another worker may take to say what it knows of a session."""


class Whereabouts(Protocol):
    """What is known of who serves which lane."""

    def server_of(self, lane: int) -> Link | None:
        """Return the link to another worker that serves the lane now, if one does."""

    def is_expected(self, lane: int) -> bool:
        """Whether somebody should serve the lane within seconds, as far as is known."""

    async def change(self, timeout_s: float) -> None:
        """Wait until either may have changed, at most so long."""


class RemoteLane:
    """A lane that another worker serves."""

    def __init__(self, number: int, link: Link) -> None:
        self.link = link
        self._number = number

    def check_capacity(self, submission: Submission) -> None:
        """Raise LaneNotActiveError or LaneSaturatedError if the link would not take this now."""
        self.link.check_capacity(submission)

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        """Forward a submission to the lane; see SubmissionTarget."""
        return self.link.submit(self._number, submission)


class GroupRoute:
    """See Route."""

    def __init__(self, number: int, lane: Lane, whereabouts: Whereabouts) -> None:
        self._number = number
        self._lane = lane
        self._whereabouts = whereabouts
        self._remote: RemoteLane | None = None
        self._has_served = False

    def check_capacity(self, submission: Submission) -> None:
        """Raise the error of the lane that would take this now."""
        self._target().check_capacity(submission)

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        """Submit to the lane that takes this now; see SubmissionTarget."""
        return self._target().submit(submission)

    def _target(self) -> SubmissionTarget:
        """Return the lane that serves; if none does, this process's own, whose error says why."""
        if self._lane.state is LaneState.ACTIVE:
            return self._lane
        link = self._whereabouts.server_of(self._number)
        if link is None:
            return self._lane
        if self._remote is None or self._remote.link is not link:
            self._remote = RemoteLane(self._number, link)
        return self._remote

    @property
    def is_serving(self) -> bool:
        """See Route."""
        is_serving = (
            self._lane.state is LaneState.ACTIVE or self._whereabouts.server_of(self._number) is not None
        )
        self._has_served = self._has_served or is_serving
        return is_serving

    @property
    def has_served(self) -> bool:
        """See Route."""
        return self._has_served or self.is_serving

    async def wait(self, deadline: Deadline) -> bool:
        """See Route."""
        while not self.is_serving:
            if deadline.is_over or not self._whereabouts.is_expected(self._number):
                return False
            await self._whereabouts.change(deadline.remaining_s)
        return True

    def may_submit_again(self, err: Exception) -> bool:
        """See Route."""
        return isinstance(err, LaneNotActiveError | OutcomeUnknownError)

    async def session(self, key: SessionKey) -> SessionState | None:
        """See Route."""
        link = self._owner()
        if link is None:
            return await self._lane.session(key)
        return await _asked(link, SESSION, told_key(self._number, key), heard_state)

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """See Route."""
        link = self._owner()
        if link is None:
            return await self._lane.sessions_of(client_hash, count)
        return await _asked(link, SESSIONS, [self._number, client_hash, count], heard_rows)

    async def find(self, key: EventKey) -> Entry | None:
        """See Route."""
        link = self._owner()
        if link is None:
            return await self._lane.find(key)
        return await _asked(link, FIND, told_key(self._number, key), heard_entry)

    def _owner(self) -> Link | None:
        """Return the link to who serves the lane, None if nobody else does."""
        return None if self._lane.state is LaneState.ACTIVE else self._whereabouts.server_of(self._number)


async def _asked(link: Link, kind: str, question: list[Any], heard: Callable[[Any], Heard]) -> Heard:
    """Return what another worker says. Raises LaneNotActiveError, also where that cannot be read."""
    answer = await link.ask(kind, question, ANSWER_S)
    try:
        return heard(answer)
    except (TypeError, ValueError) as err:
        raise LaneNotActiveError(f"another worker's answer cannot be read: {err!r}") from err
