"""How workers connect: sockets of the event loop, or a simulated network in tests."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

from app.peers.connection import Connection
from app.peers.limits import HANDSHAKE_S
from app.peers.tls import PeerTLS


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
        context = None if self._tls is None else self._tls.contexts().server
        timeout_s = None if context is None else HANDSHAKE_S
        server = await asyncio.get_running_loop().create_server(
            make, sock=listener, ssl=context, ssl_handshake_timeout=timeout_s
        )
        return server.close
