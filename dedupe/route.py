"""
Route: the way to the lane of one partition, in this process or in another worker.

Router.submit -> **Route.submit** -> Lane.submit
"""

from typing import Protocol

from dedupe.decide.sessions import SessionKey, SessionState
from dedupe.model.clock import Deadline
from dedupe.model.types import Entry, EventKey
from dedupe.submission import SubmissionTarget


class Route(SubmissionTarget, Protocol):
    """A partition's lane, in whichever worker serves it now. A Lane is its own route."""

    @property
    def is_serving(self) -> bool:
        """Whether a lane accepts events now."""

    @property
    def has_served(self) -> bool:
        """Whether a lane has accepted events since this process began."""

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until a lane accepts events; return False if none is expected to before the deadline."""

    def may_submit_again(self, err: Exception) -> bool:
        """Return whether events that failed with this error may be submitted again."""

    async def session(self, key: SessionKey, *, is_ended: bool = False) -> SessionState | None:
        """
        Return the state of a client session of this partition; None if there is none.

        An expired session is returned as evicted. With `is_ended`, note that its client has ended it.
        Raises LaneNotActiveError, IndexUnavailableError (retriable).
        """

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """Return at most `count` sessions of a client; raises as `session` does."""

    async def find(self, key: EventKey) -> Entry | None:
        """Return the entry of an event key, None if its event would be new; raises as `session` does."""
