"""What the proxies of these tests share: a loopback server that leaves nothing behind."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.support.processes import HOST

ACCEPT_TURNS = 3
"""Turns of asyncio's loop from an accepted socket to its protocol: a server that is closed does not wait."""


class TCPServer(ABC):
    """Serves each connection in a task of its own; leaving the context ends them all."""

    def __init__(self, port: int = 0) -> None:
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self._wanted_port)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._is_closing = True
        self._server.close()
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; it is closed afterwards."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closing:
            writer.close()
            return
        task = asyncio.ensure_future(self._serve_and_close(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.close())  # also where it was cancelled before it began

    async def _serve_and_close(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a stream and wait until it is."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
