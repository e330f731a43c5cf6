"""
The connections between this worker and all others.

Each worker dials every other one, and asks on the connection it has dialled itself; the other side of it
answers, and tells its status.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import structlog

from app.peers.acceptor import Acceptor
from app.peers.connection import Shared
from app.peers.frames import HEAD, packed
from app.peers.handshake import key_of
from app.peers.host import Host
from app.peers.limits import PeerLimits, PeerMetrics, PeerTimes
from app.peers.link import PeerLink
from app.peers.network import Network, SocketNetwork
from dedupe.clock import Clock

log = structlog.get_logger(__name__)


class Peers:
    """All connections of one worker."""

    def __init__(
        self,
        worker: str,
        host: Host,
        *,
        secret: bytes,
        clock: Clock,
        limits: PeerLimits | None = None,
        times: PeerTimes | None = None,
        network: Network | None = None,
        dice: random.Random | None = None,
    ) -> None:
        """
        Prepare; `run` connects.

        Args:
            worker: this one's name, which no other one has.
            host: serves what others ask.
            secret: the identity secret, the same for all workers.
            clock: of the deadlines that are passed on.
            limits, times: of each connection.
            network: TCP without TLS unless given.
            dice: of nonces and jitter; the system's unless given.
        """
        self._shared = Shared(
            worker,
            key_of(secret),
            clock,
            limits or PeerLimits(),
            times or PeerTimes(),
            PeerMetrics(),
            dice or random.SystemRandom(),
        )
        self._host = host
        self._network = network or SocketNetwork(handshake_s=self._shared.times.handshake_s)
        self._addresses: dict[str, str] = {}
        self._links: dict[str, PeerLink] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._strangers: dict[Acceptor, None] = {}  # oldest first
        self._callers: dict[str, Acceptor] = {}
        self._is_running = self._is_announcement_due = False

    @property
    def metrics(self) -> PeerMetrics:
        """What was counted so far."""
        return self._shared.metrics

    async def run(self, listener: Any) -> None:
        """Serve the others at a bound socket, and keep the links to them, until cancelled."""
        stop_listening = await self._network.listen(self._accept, listener)
        self._is_running = True
        try:
            self._keep_links()
            await asyncio.get_running_loop().create_future()
        finally:
            self._is_running = False
            stop_listening()
            keeping = [self._drop(worker) for worker in list(self._links)]
            for caller in [*self._strangers, *self._callers.values()]:
                caller.end("given up")
            await asyncio.gather(*keeping, return_exceptions=True)

    def set_members(self, addresses: Mapping[str, str]) -> None:
        """
        Keep links to these workers, this one aside, and to no others.

        Args:
            addresses: `host:port` of each. Who has another one than before gets a new link.
        """
        self._addresses = {
            worker: address for worker, address in addresses.items() if worker != self._shared.worker
        }
        if self._is_running:
            self._keep_links()

    def link(self, worker: str) -> PeerLink | None:
        """Return the way to another worker, which may be down; None if it is no member."""
        return self._links.get(worker)

    def announce(self) -> None:
        """Send this worker's status to all others, once in this turn of the loop."""
        if self._is_running and not self._is_announcement_due:
            self._is_announcement_due = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _keep_links(self) -> None:
        for worker, link in list(self._links.items()):
            if self._addresses.get(worker) != link.address:
                self._drop(worker)
        for worker, address in self._addresses.items():
            if worker not in self._links:
                link = PeerLink(self._shared, self._host, self._network, worker, address)
                self._links[worker] = link
                self._keeping[worker] = asyncio.get_running_loop().create_task(link.keep())

    def _drop(self, worker: str) -> "asyncio.Task[None]":
        """End a link, and return the task that ends with it."""
        del self._links[worker]
        keeping = self._keeping.pop(worker)
        keeping.cancel()
        return keeping

    def _accept(self) -> Acceptor:
        return Acceptor(self._shared, self._host, self._meet, self._know, self._forget)

    def _meet(self, stranger: Acceptor) -> None:
        """Let the newest connections prove themselves: a crowd of silent ones keeps nobody out."""
        self._strangers[stranger] = None
        if len(self._strangers) > self._shared.limits.strangers_max:
            next(iter(self._strangers)).refuse("too_many_strangers")

    def _know(self, caller: Acceptor) -> None:
        """Serve a worker on its newest connection alone: it has given up those before."""
        self._strangers.pop(caller, None)
        before = self._callers.get(caller.worker)
        self._callers[caller.worker] = caller
        if before is not None:
            before.end("replaced")
        caller.tell_status(self._status())

    def _forget(self, caller: Acceptor) -> None:
        self._strangers.pop(caller, None)
        if self._callers.get(caller.worker) is caller:
            del self._callers[caller.worker]

    def _announce(self) -> None:
        self._is_announcement_due = False
        status = self._status()
        for caller in self._callers.values():
            caller.tell_status(status)

    def _status(self) -> bytes:
        try:
            status = packed(self._host.status())
            if len(status) + HEAD.size > self._shared.limits.message_bytes_max:
                raise ValueError(f"it has {len(status)} bytes")
        except Exception:
            log.exception("this worker's status cannot be told")
            return packed(None)
        return status
