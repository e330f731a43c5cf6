"""
Peers: all connections between this worker and the others.

Each worker dials every other one and sends on the connection that it has dialled; the accepted side answers
there, and sends its status.
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
from app.peers.limits import PeerLimits, PeerMetrics
from app.peers.link import PeerLink
from app.peers.network import Network, SocketNetwork
from dedupe.cluster import links
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.model.clock import Clock

logger = structlog.get_logger(__name__)


class Peers(links.Peers):
    """All connections of one worker."""

    def __init__(
        self,
        worker: str,
        *,
        secret: bytes,
        clock: Clock,
        limits: PeerLimits | None = None,
        network: Network | None = None,
        rng: random.Random | None = None,
        plan: int = 0,
    ) -> None:
        """
        Connect nothing until `run`.

        Args:
            worker: the name, unique in the group.
            secret: the same for all workers.
            clock: of deadlines.
            limits: of connections.
            network: how to reach others.
            rng: for nonces and pauses.
            plan: the number of the last plan that is carried out; workers of others are not reached.
        """
        self._shared = Shared(
            worker,
            key_of(secret),
            clock,
            limits or PeerLimits(),
            PeerMetrics(),
            rng or random.SystemRandom(),
            plan,
        )
        self._handler: PeerRequestHandler | None = None  # None unless running
        self._network = network or SocketNetwork()
        self._addresses: dict[str, str] = {}
        self._links: dict[str, PeerLink] = {}
        self._link_tasks: dict[str, asyncio.Task[None]] = {}
        self._unauthenticated: dict[Acceptor, None] = {}  # oldest first
        self._acceptors: dict[str, Acceptor] = {}
        self._is_announcement_due = False

    @property
    def metrics(self) -> PeerMetrics:
        """Counters since the process began."""
        return self._shared.metrics

    async def run(self, listener: Any, handler: PeerRequestHandler) -> None:
        """
        Accept connections and keep links to all members, until cancelled.

        Args:
            listener: a bound socket.
            handler: serves the messages of other workers.
        """

        def accept() -> Acceptor:
            return Acceptor(self._shared, handler, self._on_accept, self._on_authenticated, self._on_closed)

        stop_listening = await self._network.listen(accept, listener)
        self._handler = handler
        try:
            self._update_links(handler)
            await asyncio.get_running_loop().create_future()
        finally:
            self._handler = None
            stop_listening()
            link_tasks = [self._drop_link(worker) for worker in list(self._links)]
            for acceptor in [*self._unauthenticated, *self._acceptors.values()]:
                acceptor.end("given up")
            await asyncio.gather(*link_tasks, return_exceptions=True)

    def set_members(self, addresses: Mapping[str, str]) -> None:
        self._addresses = {
            worker: address for worker, address in addresses.items() if worker != self._shared.worker
        }
        if self._handler is not None:
            self._update_links(self._handler)

    def link(self, worker: str) -> PeerLink | None:
        return self._links.get(worker)

    def announce(self) -> None:
        if self._handler is not None and not self._is_announcement_due:
            self._is_announcement_due = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _update_links(self, handler: PeerRequestHandler) -> None:
        for worker, link in list(self._links.items()):
            if self._addresses.get(worker) != link.address:
                self._drop_link(worker)
        for worker, address in self._addresses.items():
            if worker not in self._links:
                link = self._links[worker] = PeerLink(self._shared, handler, self._network, worker, address)
                self._link_tasks[worker] = asyncio.get_running_loop().create_task(link.run())

    def _drop_link(self, worker: str) -> "asyncio.Task[None]":
        """End a link, and return its task, which is ending."""
        del self._links[worker]
        task = self._link_tasks.pop(worker)
        task.cancel()
        return task

    def _on_accept(self, acceptor: Acceptor) -> None:
        """Limit unauthenticated connections to the newest, so that silent ones block no worker."""
        self._unauthenticated[acceptor] = None
        if len(self._unauthenticated) > self._shared.limits.unauthenticated_max:
            next(iter(self._unauthenticated)).refuse("too_many_strangers")

    def _on_authenticated(self, acceptor: Acceptor) -> None:
        """Serve a worker only on its newest connection: it has ended earlier ones."""
        self._unauthenticated.pop(acceptor, None)
        before = self._acceptors.get(acceptor.worker)
        self._acceptors[acceptor.worker] = acceptor
        if before is not None:
            before.end("replaced")
        acceptor.send_status(self._status())

    def _on_closed(self, acceptor: Acceptor) -> None:
        self._unauthenticated.pop(acceptor, None)
        if self._acceptors.get(acceptor.worker) is acceptor:
            del self._acceptors[acceptor.worker]

    def _announce(self) -> None:
        self._is_announcement_due = False
        status = self._status()
        for acceptor in self._acceptors.values():
            acceptor.send_status(status)

    def _status(self) -> bytes:
        """Return this worker's encoded status; None's encoding if there is none, or it is too large."""
        try:
            status = packed(self._handler and self._handler.status())
            if len(status) + HEAD.size > self._shared.limits.message_bytes_max:
                raise ValueError(f"it has {len(status)} bytes")
        except Exception:
            logger.exception("the status of this worker cannot be encoded")
            return packed(None)
        return status
