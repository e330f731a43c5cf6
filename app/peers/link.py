"""PeerLink: the link to one other worker over one connection at a time, which is replaced when it is lost."""

import asyncio
from collections import deque
from typing import Any

import structlog

from app.peers.connection import SILENT, UNANSWERED, Shared
from app.peers.dialler import Dialler
from app.peers.errors import reason_of
from app.peers.limits import (
    HANDSHAKE_S,
    REPLACE_S,
    REPLACED_MAX,
    REPLACED_S,
    RETRY_S,
    UNANSWERED_AGAIN_S,
    UNANSWERED_PAUSE_MAX_S,
    UNANSWERED_PAUSE_S,
)
from app.peers.network import Network
from dedupe.cancellation import is_own_cancellation
from dedupe.cluster import links
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.model.errors import LaneNotActiveError
from dedupe.submission import Outcomes, Submission

logger = structlog.get_logger(__name__)


class PeerLink(links.PeerLink):
    """
    The link to one other worker.

    It is up once full packets have passed both ways. A lost connection is replaced at once, if something that
    was submitted since the last replacement was answered, or nothing was submitted; during that attempt
    nothing can be sent. The link is down after an attempt that has failed, after DEAD_S without a byte, when
    the echo behind a submission takes longer than ANSWER_S, and when it was replaced too often: pings alone,
    or answers to small frames, do not keep it up.
    """

    def __init__(
        self, shared: Shared, handler: PeerRequestHandler, network: Network, worker: str, address: str
    ) -> None:
        """Connect nothing until `run`; `handler` is passed the statuses of `worker`, at `host:port`."""
        self.worker = worker
        self.address = address
        self.is_up = False
        self.connections = 0  # made so far
        self.status: Any = None  # its last status, encoded; None while it is down
        self._shared, self._handler, self._network = shared, handler, network
        self._dialler: Dialler | None = None
        self._changed = asyncio.Event()
        self._why = ""
        self._replaced_at: deque[float] = deque(maxlen=REPLACED_MAX)
        self._pause_s = 0.0  # before the next attempt, longer than usual
        self._unanswered_s = UNANSWERED_PAUSE_S  # the pause when a connection does not answer
        self._is_doubtful = False  # lost with submissions under way, and none was answered since

    @property
    def why(self) -> str:
        return self._why

    @property
    def can_send(self) -> bool:
        return self.is_up and self._dialler is not None and self._dialler.is_open

    def check_capacity(self, submission: Submission) -> None:
        self._connection().check_capacity(submission)

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        return self._connection().submit(lane, submission)

    async def request(self, kind: str, body: Any, timeout_s: float) -> Any:
        return await self._connection().request(kind, body, timeout_s)

    def notify(self, kind: str, body: Any) -> bool:
        dialler = self._dialler
        is_sent = dialler is not None and dialler.is_open and dialler.notify(kind, body)
        self._shared.metrics.messages_dropped += not is_sent
        return is_sent

    async def run(self) -> None:
        """Connect, and reconnect, until cancelled; unexpected failures are logged and retried."""
        try:
            while True:
                try:
                    may_reconnect = await self._stay_connected(HANDSHAKE_S)
                    while may_reconnect and self._may_replace():
                        self._shared.metrics.reconnects += 1
                        may_reconnect = await self._stay_connected(REPLACE_S)
                except (Exception, asyncio.CancelledError) as err:
                    if is_own_cancellation(err):
                        raise
                    logger.exception("a link to a worker failed", worker=self.worker)
                self._go_down()
                pause_s, self._pause_s = max(self._pause_s, RETRY_S), 0.0
                await asyncio.sleep(pause_s * self._shared.rng.uniform(0.5, 1.5))
        finally:
            self._go_down()

    async def _stay_connected(self, timeout_s: float) -> bool:
        """
        Connect within the timeout and wait until the connection ends.

        Returns:
            Whether to reconnect at once: the connection has lasted for a while and did not end by silence.
        """
        loop = asyncio.get_running_loop()
        dialler = Dialler(self._shared, self.worker, self._on_status, self._changed.set)
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._connect(dialler)
            except (OSError, ValueError, TimeoutError) as err:
                self._log_reason(dialler.end_reason or reason_of(err))
                return False
            self._dialler, connected_at = dialler, loop.time()
            if not self.is_up:
                logger.info("connected to a worker", worker=self.worker, address=self.address)
            self.is_up, self._why = True, ""
            self._shared.metrics.connected += 1
            self.connections += 1
            self._pass_status(self.status)
            while dialler.end_reason is None:
                self._changed.clear()
                await self._changed.wait()
            self._log_reason(dialler.end_reason)
            lasted_s = loop.time() - connected_at
            if lasted_s >= UNANSWERED_AGAIN_S:
                self._unanswered_s = UNANSWERED_PAUSE_S
            if dialler.end_reason == UNANSWERED:
                self._pause_s = self._unanswered_s
                self._unanswered_s = min(2 * self._unanswered_s, UNANSWERED_PAUSE_MAX_S)
            is_broken = dialler.end_reason in (SILENT, UNANSWERED)
            return lasted_s >= RETRY_S and not is_broken and self._has_answered(dialler)
        finally:
            dialler.end("given up")
            if self._dialler is dialler:
                self._dialler = None

    def _has_answered(self, dialler: Dialler) -> bool:
        """Whether a lost connection may be replaced: the one before it was answered, or not used."""
        was_doubtful = self._is_doubtful and not dialler.answers
        self._is_doubtful = dialler.was_awaited or was_doubtful
        return not (was_doubtful and dialler.was_awaited)

    def _may_replace(self) -> bool:
        """Whether the link was not replaced too often; counts the replacement that follows."""
        now = asyncio.get_running_loop().time()
        is_often = len(self._replaced_at) == REPLACED_MAX and now - self._replaced_at[0] < REPLACED_S
        self._replaced_at.append(now)
        if is_often:
            self._log_reason("replaced too often")
        return not is_often

    async def _connect(self, dialler: Dialler) -> None:
        """Connect, and wait until the path is proved and a status is there. Raises OSError, ValueError."""
        host, _, port = self.address.rpartition(":")
        await self._network.connect(lambda: dialler, host.strip("[]"), int(port))
        while dialler.statuses == 0 or not dialler.is_path_proved:
            if dialler.end_reason is not None:
                raise ConnectionAbortedError(dialler.end_reason)
            self._changed.clear()
            await self._changed.wait()

    def _connection(self) -> Dialler:
        if self._dialler is None or not self._dialler.is_open:
            raise LaneNotActiveError(f"no connection to {self.worker}", detail="a partition is out of reach")
        return self._dialler

    def _on_status(self, status: Any) -> None:
        self.status = status
        self._changed.set()
        if self._dialler is not None:  # else it is passed once the path is proved
            self._pass_status(status)

    def _go_down(self) -> None:
        is_news, self.is_up, self.status = self.is_up, False, None
        if is_news:
            if self._why:
                logger.warning("a worker is down", worker=self.worker, address=self.address, why=self._why)
            self._pass_status(None)

    def _pass_status(self, status: Any) -> None:
        try:
            self._handler.on_status(self.worker, status)
        except Exception:
            logger.exception("status of another worker not handled", worker=self.worker)

    def _log_reason(self, why: str) -> None:
        """Log why the worker cannot be reached, once while the reason stays the same."""
        if why != self._why:
            logger.info("no connection to a worker", worker=self.worker, address=self.address, why=why)
        self._why = why
