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
    """A partition's lane wherever it is served at the moment. A Lane is its own route."""

    @property
    def is_serving(self) -> bool:
        """Whether a lane takes events now."""

    @property
    def has_served(self) -> bool:
        """Whether a lane has taken events since this process began."""

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until a lane takes events; return False if none is expected to before the deadline."""

    def may_submit_again(self, err: Exception) -> bool:
        """Return whether events that failed with this error may be submitted once more, as by a client."""

    async def session(self, key: SessionKey) -> SessionState | None:
        """
        Return the state of a client session of this partition; None if there is none.

        It is evicted as well once its lease is over. Raises LaneNotActiveError, IndexUnavailableError.
        """

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """Return at most `count` sessions of a client; raises as `session` does."""

    async def find(self, key: EventKey) -> Entry | None:
        """Return the entry of an event's key, None if an event of this key would be new; raises likewise."""
