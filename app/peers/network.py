"""Where connections come from: the sockets of the event loop here, a simulated network in tests."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from app.peers.connection import Connection
from app.peers.tls import PeerTLS

BACKLOG = 128
ACCEPT_PAUSE_S = 0.1

log = structlog.get_logger(__name__)


class Listening(Protocol):
    """Accepts connections until closed."""

    def close(self) -> None:
        """Accept none any more."""


class Network(Protocol):
    """Connects workers."""

    async def connect(self, make: Callable[[], Connection], host: str, port: int) -> Any:
        """Connect the protocol that `make` makes; unbounded. Raises OSError."""

    async def listen(self, make: Callable[[], Connection], listener: Any) -> Listening:
        """Connect whoever calls to what `make` makes."""


class SocketNetwork:
    """TCP, or TLS where there are certificates for it."""

    def __init__(self, tls: PeerTLS | None = None, *, handshake_s: float = 2.0) -> None:
        """Take the certificates, and how long it may take to agree on TLS."""
        self._tls = tls
        self._handshake_s = handshake_s

    async def connect(self, make: Callable[[], Connection], host: str, port: int) -> Any:
        """See Network."""
        context = None if self._tls is None else self._tls.contexts().client
        return await asyncio.get_running_loop().create_connection(make, host, port, ssl=context)

    async def listen(self, make: Callable[[], Connection], listener: socket.socket) -> Listening:
        """See Network."""
        if self._tls is None:
            return await asyncio.get_running_loop().create_server(make, sock=listener)
        return TLSListening(make, listener, self._tls, self._handshake_s)


class TLSListening:
    """
    Accepts connections and agrees on TLS.

    asyncio's own server shows a protocol its connection after that only: nobody would count who never begins.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        listener: socket.socket,
        tls: PeerTLS,
        handshake_s: float,
    ) -> None:
        """Begin to accept."""
        self._make, self._listener, self._tls = make, listener, tls
        self._handshake_s = handshake_s
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """See Listening."""
        self._accepting.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as err:  # mostly too many open files
                log.warning("a worker's connection was not accepted", error=str(err))
                await asyncio.sleep(ACCEPT_PAUSE_S)
            else:
                connection = self._make()
                context = self._tls.contexts().server
                connection.begin(Upgrade(connection, accepted, context, self._handshake_s))


class Upgrade:
    """An accepted socket until TLS is agreed on."""

    def __init__(
        self, connection: Connection, accepted: socket.socket, context: ssl.SSLContext, handshake_s: float
    ) -> None:
        """Begin; the connection gets its transport, or ends."""
        self._connection, self._accepted = connection, accepted
        self._context, self._handshake_s = context, handshake_s
        self._running = asyncio.get_running_loop().create_task(self._run())

    def abort(self) -> None:
        """Give it up."""
        self._running.cancel()
        self._accepted.close()

    async def _run(self) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connection,
                self._accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
            )
        except Exception as err:  # of many kinds, all of them the other side's doing
            self._connection.refuse("tls", repr(err))
