"""
PeerRequestHandler: serves the messages of other workers.

    Acceptor -> **PeerRequestHandler** -> Lane.submit, Follower.receive, PeerDirectory.update_status
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from dedupe.cluster.assignment import WorkerId
from dedupe.cluster.codec import (
    APPENDS,
    COMMITTED,
    FIND,
    SESSION,
    SESSIONS,
    STANDBY,
    decode_committed,
    encode_entry,
    encode_rows,
    encode_state,
)
from dedupe.cluster.lane_manager import LaneManager
from dedupe.cluster.role import Role
from dedupe.model.clock import Clock
from dedupe.model.errors import DiskFullError, LaneNotActiveError, RetriableError
from dedupe.submission import Outcomes, Submission

logger = structlog.get_logger(__name__)


class PeerRequestHandler:
    """Serves the other workers. Bodies are plain values after msgpack: a tuple arrives as a list."""

    def __init__(self, manager: LaneManager, clock: Clock, has_disk_room: Callable[[], bool]) -> None:
        self.requests: dict[str, Callable[[Any], Awaitable[Any]]] = {
            SESSION: self._session,
            SESSIONS: self._sessions,
            FIND: self._find,
            APPENDS: self._appends,
            STANDBY: self._stands_by,
        }
        """Handlers by kind of request, from body to response. A GatewayError is raised at the requester."""
        self._manager = manager
        self._lanes = manager.lanes
        self._clock = clock
        self._has_disk_room = has_disk_room

    def status(self) -> list[Any]:
        """Return this worker's encoded status, a few KiB at most. Never raises."""
        return self._manager.status().encode()

    def on_status(self, worker: WorkerId, fields: Any) -> None:
        """Handle another worker's encoded status; None when its link goes down. Never raises."""
        try:
            self._manager.directory.update_status(worker, fields)
        except (ValueError, TypeError) as err:
            logger.warning("status of another worker cannot be decoded", worker=worker, error=repr(err))

    def on_notification(self, worker: WorkerId, kind: str, body: Any) -> None:
        """Handle a one-way message; kinds of later versions are ignored. Never raises."""
        if kind != COMMITTED:
            return
        try:
            self.on_committed(body)
        except (ValueError, TypeError, IndexError) as err:
            logger.warning(
                "message of another worker cannot be decoded", worker=worker, kind=kind, error=repr(err)
            )

    def on_committed(self, body: Any) -> None:
        """Pass an owner's encoded commit to the lane's follower. Raises ValueError, TypeError, IndexError."""
        number, committed = decode_committed(body)
        if self._manager.role_of(number) is Role.FOLLOWER:
            self._lanes[number].follower.receive(committed)

    async def on_request(self, kind: str, body: Any) -> Any:
        """Return the response to a request. Raises GatewayError."""
        if kind not in self.requests:
            raise RetriableError(f"no handler of requests of kind {kind!r}")
        return await self.requests[kind](body)

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """
        Submit another worker's events to a lane; its number and their partitions are not checked yet.

        Returns:
            A future of the outcomes, same order.

        Raises:
            LaneNotActiveError, LaneSaturatedError, DiskFullError: nothing was accepted.
        """
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
        number, key, *later = body
        is_ended = later[:1] == [True]  # an earlier version does not say
        return encode_state(await self._lanes[number].session(key, is_ended=is_ended))

    async def _sessions(self, body: Any) -> Any:
        number, client_hash, count, *_ = body
        return encode_rows(await self._lanes[number].sessions_of(client_hash, count))

    async def _appends(self, body: Any) -> Any:
        number, leader, *_ = body
        return await self._manager.hand_overs.appends.can_append(number, leader)

    async def _stands_by(self, body: Any) -> Any:
        numbers, probed, *_ = body
        if not self._has_disk_room():
            return None
        return await self._manager.hand_overs.slow.stands_by(numbers, probed)

    async def _find(self, body: Any) -> Any:
        number, key, *_ = body
        return encode_entry(await self._lanes[number].find(key))
