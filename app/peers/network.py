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
        loop = asyncio.get_running_loop()
        if self._tls is None:
            return (await loop.create_server(make, sock=listener)).close
        listener.setblocking(False)
        listener.listen(BACKLOG)
        accepting = loop.create_task(_accept(make, listener, self._tls))
        accepting.add_done_callback(lambda _: listener.close())  # the loop does not watch it any more
        return accepting.cancel


async def _accept(make: Callable[[], Connection], listener: socket.socket, tls: PeerTLS) -> None:
    """
    Accept connections until cancelled, and begin TLS on each.

    asyncio's server makes a connection known only after the TLS handshake, so that nothing would limit
    the number of those that never begin it.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, _ = await loop.sock_accept(listener)
        except OSError as err:
            logger.warning("a worker's connection was not accepted", error=str(err))
            await asyncio.sleep(ACCEPT_PAUSE_S)
        else:
            connection = make()
            connection.begin(_Handshake(connection, accepted, tls.contexts().server))
            await asyncio.sleep(0)  # a full backlog would hold the event loop


class _Handshake:
    """An accepted socket until TLS is established; what the connection aborts until it has a transport."""

    def __init__(self, connection: Connection, accepted: socket.socket, context: ssl.SSLContext) -> None:
        self._task = asyncio.get_running_loop().create_task(_encrypt(connection, accepted, context))
        # Not sooner: until then the loop watches its descriptor, which the next connection may get.
        self._task.add_done_callback(lambda task: accepted.close() if task.cancelled() else None)

    def abort(self) -> None:
        self._task.cancel()


async def _encrypt(connection: Connection, accepted: socket.socket, context: ssl.SSLContext) -> None:
    """Establish TLS and give the connection its transport, or end it."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, accepted, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
        )
    except Exception:  # of many kinds, all caused by the other side
        connection.refuse("tls")
