"""What a worker does for the others: decides their events, answers, takes what they say, tells its status."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from dedupe.clock import Clock
from dedupe.errors import DiskFullError, LaneNotActiveError, RetriableError
from dedupe.group.assignment import WorkerId
from dedupe.group.codec import (
    COMMITTED,
    FIND,
    SESSION,
    SESSIONS,
    STATUS,
    heard_committed,
    told_entry,
    told_rows,
    told_state,
)
from dedupe.group.keeper import Keeper, Role
from dedupe.submission import Outcomes, Submission

log = structlog.get_logger(__name__)


class GroupHost:
    """One worker as the others use it; see Host of app.peers."""

    def __init__(self, keeper: Keeper, clock: Clock, has_disk_room: Callable[[], bool]) -> None:
        """Take who keeps its lanes, and what says whether this worker's disk takes more."""
        self.answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            SESSION: self._session,
            SESSIONS: self._sessions,
            FIND: self._find,
        }
        """What may be asked: by kind, what answers its body. It may raise a GatewayError."""
        self._keeper = keeper
        self._lanes = keeper.lanes
        self._clock = clock
        self._has_disk_room = has_disk_room

    def status(self) -> list[Any]:
        """Return what the others shall know."""
        return self._keeper.status().told()

    def take(self, worker: WorkerId, kind: str, body: Any) -> None:
        """Take what another worker says; whatever it is, nothing is raised."""
        try:
            if kind == STATUS:
                self._keeper.neighbours.hear(worker, body)
            elif kind == COMMITTED:
                number, committed = heard_committed(body)
                if self._keeper.role_of(number) is Role.FOLLOWER:
                    self._lanes[number].follower.take(committed)
        except (ValueError, TypeError, IndexError) as err:
            log.warning("another worker is not understood", worker=worker, kind=kind, error=repr(err))

    async def answer(self, worker: WorkerId, kind: str, body: Any) -> Any:
        """Answer what another worker asks. Raises GatewayError."""
        if kind not in self.answers:
            raise RetriableError(f"nobody here answers {kind!r}")
        return await self.answers[kind](body)

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """Decide events of another worker. Raises LaneNotActiveError, LaneSaturatedError, DiskFullError."""
        if not 0 <= lane < len(self._lanes):
            raise LaneNotActiveError(f"there is no lane {lane}")
        own = self._lanes[lane]
        if any(event.partition != own.partition for event in submission.events):
            raise LaneNotActiveError("these events are of another partition")
        if not self._has_disk_room():
            raise DiskFullError("free disk space of the partition's owner is below GATEWAY_DISK_FREE_MIN")
        own.check_capacity(submission)
        received_ms = min(submission.received_ms, self._clock.now_ms())  # this clock alone moves the window
        return own.submit(submission._replace(received_ms=received_ms))

    async def _session(self, body: Any) -> Any:
        number, key, *_ = body
        return told_state(await self._lanes[number].session(key))

    async def _sessions(self, body: Any) -> Any:
        number, client_hash, count, *_ = body
        return told_rows(await self._lanes[number].sessions_of(client_hash, count))

    async def _find(self, body: Any) -> Any:
        number, key, *_ = body
        return told_entry(await self._lanes[number].find(key))
