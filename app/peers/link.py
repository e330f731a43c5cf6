"""A worker's way to another one: one connection at a time, made again whenever it is lost."""

import asyncio
from typing import Any

import structlog

from app.peers.connection import SILENT, Shared
from app.peers.dialler import Dialler
from app.peers.host import Host
from app.peers.network import Network
from dedupe.cancellation import is_own_cancellation
from dedupe.errors import LaneNotActiveError
from dedupe.group import STATUS
from dedupe.submission import Outcomes, Submission

log = structlog.get_logger(__name__)


class PeerLink:
    """
    The way to one other worker.

    It is up from the other's first status on, until it is lost and one try to connect again has failed, or
    until nothing was heard for `dead_s`. While that try is under way nothing can be sent.
    """

    def __init__(self, shared: Shared, host: Host, network: Network, worker: str, address: str) -> None:
        """Take whom to reach, at `host:port`, and who is told its status."""
        self.worker = worker
        self.address = address
        self.is_up = False
        self.status: Any = None  # what it said last; None while it is down
        self._shared, self._host, self._network = shared, host, network
        self._dialler: Dialler | None = None
        self._changed = asyncio.Event()
        self._why = ""

    @property
    def can_send(self) -> bool:
        """Whether it is up, and no connection is being mended."""
        return self.is_up and self._dialler is not None and self._dialler.is_open

    def check_capacity(self, submission: Submission) -> None:
        """Raise LaneNotActiveError if it cannot be reached, LaneSaturatedError if too much is under way."""
        self._connected().check_capacity(len(submission.events), submission.size_bytes)

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """
        Send a submission to a lane of the other worker.

        Returns:
            A future of their outcomes, same order, or of the error that their owner raised: nothing was
            taken if it is a LaneNotActiveError, LaneSaturatedError or DiskFullError. When the connection
            breaks, it is LaneNotActiveError if nothing was sent and OutcomeUnknownError otherwise. No
            deadline ends it; cancelling it cancels nothing.

        Raises:
            LaneNotActiveError, LaneSaturatedError: as check_capacity; nothing was sent.
        """
        return self._connected().submit(lane, submission)

    async def ask(self, kind: str, body: Any, timeout_s: float) -> Any:
        """
        Return the other worker's answer to a question of any kind.

        Raises:
            LaneNotActiveError: it cannot be reached; nothing was asked.
            LaneSaturatedError: too many questions are open; nothing was asked.
            DeadlineExceededError: no answer in time.
            OutcomeUnknownError: the connection broke meanwhile.
            UnknownKindError: the other worker's version does not know such frames.
            GatewayError: as the other worker raised it.
        """
        return await self._connected().ask(kind, body, timeout_s)

    def tell(self, kind: str, body: Any) -> bool:
        """
        Send a message that nobody answers; one that is on its way when the connection breaks is lost.

        Returns:
            False if it was dropped: no connection, or the other side is too slow in reading.
        """
        dialler = self._dialler
        is_sent = dialler is not None and dialler.is_open and dialler.tell(kind, body)
        self._shared.metrics.tells_dropped += not is_sent
        return is_sent

    async def keep(self) -> None:
        """Connect, and connect again, until cancelled; a failure of our own is told and passes."""
        times, dice = self._shared.times, self._shared.dice
        try:
            while True:
                try:
                    may_mend = await self._stay_connected(times.handshake_s)
                    while may_mend:
                        self._shared.metrics.reconnects += 1
                        may_mend = await self._stay_connected(times.mend_s)
                except (Exception, asyncio.CancelledError) as err:
                    if is_own_cancellation(err):
                        raise
                    log.exception("a link to a worker failed", worker=self.worker)
                self._go_down()
                await asyncio.sleep(times.retry_s * dice.uniform(0.5, 1.5))
        finally:
            self._go_down()

    async def _stay_connected(self, limit_s: float) -> bool:
        """
        Connect within the limit and wait until the connection ends.

        Returns:
            Whether it may be mended: it has lasted, and was not silent. One that was lost at once would be
            lost at once again.
        """
        loop = asyncio.get_running_loop()
        dialler = Dialler(self._shared, self.worker, self._take_status, self._changed.set)
        try:
            try:
                async with asyncio.timeout(limit_s):
                    await self._connect(dialler)
            except (OSError, ValueError, TimeoutError) as err:
                self._tell_why(dialler.end_reason or repr(err))
                return False
            self._dialler, connected_at = dialler, loop.time()
            self._go_up()
            while dialler.end_reason is None:
                self._changed.clear()
                await self._changed.wait()
            self._tell_why(dialler.end_reason)
            is_lasting = loop.time() - connected_at >= self._shared.times.retry_s
            return is_lasting and dialler.end_reason != SILENT
        finally:
            dialler.end("given up")
            if self._dialler is dialler:
                self._dialler = None

    async def _connect(self, dialler: Dialler) -> None:
        """Return once the other worker has told its status. Raises OSError, ValueError."""
        host, _, port = self.address.rpartition(":")
        await self._network.connect(lambda: dialler, host.strip("[]"), int(port))
        while dialler.statuses == 0:
            if dialler.end_reason is not None:
                raise ConnectionAbortedError(dialler.end_reason)
            self._changed.clear()
            await self._changed.wait()

    def _connected(self) -> Dialler:
        if self._dialler is None or not self._dialler.is_open:
            raise LaneNotActiveError(f"no connection to {self.worker}", told="a partition is out of reach")
        return self._dialler

    def _take_status(self, status: Any) -> None:
        self.status = status
        self._changed.set()
        self._tell_host(status)

    def _go_up(self) -> None:
        if not self.is_up:
            log.info("connected to a worker", worker=self.worker, address=self.address)
        self.is_up, self._why = True, ""
        self._shared.metrics.connected += 1

    def _go_down(self) -> None:
        if self.is_up or self.status is not None:  # its first status comes a moment before it is up
            self.is_up, self.status = False, None
            if self._why:
                log.warning("a worker is down", worker=self.worker, address=self.address, why=self._why)
            self._tell_host(None)

    def _tell_host(self, status: Any) -> None:
        try:
            self._host.take(self.worker, STATUS, status)
        except Exception:
            log.exception("a worker's status was not taken", worker=self.worker)

    def _tell_why(self, why: str) -> None:
        """Say once why a worker cannot be reached."""
        if why != self._why:
            log.info("no connection to a worker", worker=self.worker, address=self.address, why=why)
        self._why = why
