"""How workers connect: sockets of the event loop, or a simulated network in tests."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from app.peers.connection import Connection
from app.peers.limits import HANDSHAKE_S
from app.peers.tls import PeerTLS

BACKLOG = 128
ACCEPT_PAUSE_S = 0.1
"""After an accept that failed, mostly for want of a file descriptor."""

logger = structlog.get_logger(__name__)


class Network(Protocol):
    """Connects workers."""

    async def connect(self, make: Callable[[], Connection], host: str, port: int) -> Any:
        """Connect the protocol of `make`; has no timeout. Raises OSError."""

    async def listen(self, make: Callable[[], Connection], listener: Any) -> Callable[[], object]:
        """Accept connections, each with a protocol of `make`; return a function that stops it."""


class SocketNetwork:
    """TCP, with TLS on both sides where certificates are configured."""

    def __init__(self, tls: PeerTLS | None = None) -> None:
        self._tls = tls

    async def connect(self, make: Callable[[], Connection], host: str, port: int) -> Any:
        context = None if self._tls is None else self._tls.contexts().client
        return await asyncio.get_running_loop().create_connection(make, host, port, ssl=context)

    async def listen(self, make: Callable[[], Connection], listener: socket.socket) -> Callable[[], object]:
        return _Acceptance(make, listener, self._tls).end


class _Acceptance:
    """
    Accepts connections until its end, and begins TLS on each where certificates are configured.

    asyncio's server makes a connection known only after the TLS handshake, so that nothing would limit
    the number of those that never begin it. Between its tasks a socket that it has accepted can be lost
    when it is closed.
    """

    def __init__(self, make: Callable[[], Connection], listener: socket.socket, tls: PeerTLS | None) -> None:
        self._make = make
        self._listener = listener
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._watch()

    def end(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept one connection: a full backlog would hold the event loop."""
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as err:
            logger.warning("a worker's connection was not accepted", error=str(err))
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._watch)
        else:
            accepted.setblocking(False)
            connection = self._make()
            context = None if self._tls is None else self._tls.contexts().server
            connection.begin(_Handshake(connection, accepted, context))


class _Handshake:
    """An accepted socket until it is ready for frames; the connection aborts it until it has a transport."""

    def __init__(
        self, connection: Connection, accepted: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        self._task = asyncio.get_running_loop().create_task(_begin(connection, accepted, context))
        # Not sooner: until then the loop watches its descriptor, which the next connection may get.
        self._task.add_done_callback(lambda task: accepted.close() if task.cancelled() else None)

    def abort(self) -> None:
        self._task.cancel()


async def _begin(connection: Connection, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
    """Establish TLS, if any, and give the connection its transport, or end it."""
    handshake_s = None if context is None else HANDSHAKE_S
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, accepted, ssl=context, ssl_handshake_timeout=handshake_s
        )
    except Exception:  # of many kinds, all caused by the other side
        connection.refuse("tls")
