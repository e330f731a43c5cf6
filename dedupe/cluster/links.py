"""
The interface of a group's connections (app.peers): one link to each other worker.

Links transmit events, commits, requests and statuses. Messages may be late or lost; exactly-once storage does
not depend on them.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

from dedupe.cluster.assignment import WorkerId
from dedupe.submission import Outcomes, Submission

FIRST_FIELDS = 5
"""How many fields the first version of a status has."""


class Status(NamedTuple):
    """The state of a worker's lanes, sent after each change."""

    generation: int = -1
    owned: frozenset[int] = frozenset()  # not released yet
    active: frozenset[int] = frozenset()
    failing: frozenset[int] = frozenset()  # owned, but their log or index fails: requests do not wait
    is_leaving: bool = False
    given_up: frozenset[int] = frozenset()  # to be claimed: their leader does not answer this worker
    unserved: frozenset[int] | None = None  # neither served here nor in reach; None if it is not told
    handed_over: frozenset[int] = frozenset()  # served until the group assigns them to quicker workers
    commit_ms: Mapping[str, int] = {}  # the median of its commits, by leader
    without_index: frozenset[int] = frozenset()  # owned, but their index fails or is rebuilt, not their log
    is_paused: bool = False  # it waits for a plan, and has no request under way at another worker

    def encode(self) -> list[Any]:
        """Encode it as plain values; fields of later versions only if they say something."""
        lanes = map(sorted, (self.owned, self.active, self.failing))
        unserved = None if self.unserved is None else sorted(self.unserved)
        times = sorted(self.commit_ms.items())
        lanes_later = map(sorted, (self.given_up, self.handed_over, self.without_index))
        given_up, handed_over, without_index = lanes_later
        later = [given_up, unserved, handed_over, times, without_index, self.is_paused]
        says = given_up, unserved is not None, handed_over, times, without_index, self.is_paused
        count = max((place for place, is_told in enumerate(says, 1) if is_told), default=0)
        return [self.generation, *lanes, self.is_leaving, *later[:count]]

    @classmethod
    def decode(cls, fields: object) -> Self:
        """Decode a status of any version: the first one ends with `is_leaving`. Raises ValueError."""
        if not isinstance(fields, list | tuple) or len(fields) < FIRST_FIELDS:
            raise ValueError("not a status")
        generation, *lanes, is_leaving = fields[:FIRST_FIELDS]
        if not all(isinstance(numbers, list | tuple) for numbers in lanes):
            raise ValueError("not a status")
        if not all(isinstance(number, int) for numbers in ([generation], *lanes) for number in numbers):
            raise ValueError("not a status")
        owned, active, failing = map(frozenset, lanes)
        later: list[Any] = [*fields[FIRST_FIELDS:], None, None, None, None, None, None]
        given_up, unserved, handed_over, commit_ms, without_index, is_paused, *_ = later
        return cls(
            generation,
            owned,
            active,
            failing,
            bool(is_leaving),
            _numbers_of(given_up) or frozenset(),
            _numbers_of(unserved),
            _numbers_of(handed_over) or frozenset(),
            _times_of(commit_ms),
            _numbers_of(without_index) or frozenset(),
            is_paused is True,
        )


def _numbers_of(field: object) -> frozenset[int] | None:
    """Decode a field of a later version; None if it is something else."""
    if not isinstance(field, list | tuple) or not all(isinstance(number, int) for number in field):
        return None
    return frozenset(field)


def _times_of(field: object) -> dict[str, int]:
    """Decode pairs of a name and a time; those that are something else are left out."""
    if not isinstance(field, list | tuple):
        return {}
    pairs = [each for each in field if isinstance(each, list | tuple)]
    return {pair[0]: pair[1] for pair in pairs if tuple(map(type, pair[:2])) == (str, int)}


class PeerLink(Protocol):
    """The link to one other worker."""

    is_up: bool
    """Whether the worker has answered recently."""

    @property
    def why(self) -> str:
        """Why there is no connection, as far as it is known; empty if there is one."""

    @property
    def can_send(self) -> bool:
        """Whether it is up and its connection is open; False while a lost connection is replaced."""

    def check_capacity(self, submission: Submission) -> None:
        """Raise LaneNotActiveError if there is no connection, LaneSaturatedError if too much waits for it."""

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """
        Submit events to a lane of the other worker.

        Returns:
            As SubmissionTarget.submit; the future fails with the owner's error. When the connection breaks,
            it fails with LaneNotActiveError if nothing was sent, and OutcomeUnknownError otherwise.

        Raises:
            LaneNotActiveError, LaneSaturatedError: as check_capacity; nothing was sent.
        """

    async def request(self, kind: str, body: Any, timeout_s: float) -> Any:
        """
        Return the other worker's response to a request of any kind.

        Raises:
            LaneNotActiveError: no connection; nothing was sent.
            LaneSaturatedError: too many requests are open; nothing was sent.
            DeadlineExceededError: no response in time.
            OutcomeUnknownError: the connection broke meanwhile.
            GatewayError: the other worker's error.
        """

    def notify(self, kind: str, body: Any) -> bool:
        """
        Send a one-way message, which is lost if the connection breaks.

        Returns:
            False if it was dropped: no connection, or the other side reads too slowly.
        """


class Peers(Protocol):
    """The links to all other workers of the group."""

    def set_members(self, addresses: Mapping[WorkerId, str]) -> None:
        """Keep links to exactly these workers, at `host:port`; a changed address replaces the link."""

    def link(self, worker: WorkerId) -> PeerLink | None:
        """Return the link to a worker, up or down; None if it is no member."""

    def announce(self) -> None:
        """Send this worker's status to all others, once in this turn of the event loop."""
