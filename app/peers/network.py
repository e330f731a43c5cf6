"""Where connections come from: the sockets of the event loop here, a simulated network in tests."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from app.peers.connection import Connection


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
    """TCP, or TLS where there are contexts for it: one asks for certificates, the other one shows its own."""

    def __init__(
        self,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        handshake_s: float = 2.0,
    ) -> None:
        """Take the contexts of those who are called and of those who call, and how long TLS may take."""
        self._server_tls, self._client_tls = server_tls, client_tls
        self._handshake_s = handshake_s

    async def connect(self, make: Callable[[], Connection], host: str, port: int) -> Any:
        """See Network."""
        return await asyncio.get_running_loop().create_connection(make, host, port, ssl=self._client_tls)

    async def listen(self, make: Callable[[], Connection], listener: socket.socket) -> Listening:
        """See Network."""
        tls = self._server_tls
        return await asyncio.get_running_loop().create_server(
            make, sock=listener, ssl=tls, ssl_handshake_timeout=self._handshake_s if tls else None
        )
