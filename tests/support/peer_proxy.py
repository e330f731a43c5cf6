"""A TCP proxy in front of one worker's peer port, which can cut off other workers by name."""

import asyncio

from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer, close

CHUNK_BYTES = 64 * 1024


class PeerProxy(TCPServer):
    """
    Forwards to one worker. A cut is silent, as a broken network is: nothing ends, nothing passes.

    Who calls is read from the first bytes, in which a caller says its name.
    """

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self._cut: set[str] = set()
        self._healed = asyncio.Event()

    def cut(self, caller: str) -> None:
        """Let nothing of this worker's pass any more, in either direction."""
        self._healed.clear()
        self._cut.add(caller)

    def heal(self) -> None:
        """Let everything pass again; connections that met the cut end."""
        self._cut.clear()
        self._healed.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.read(CHUNK_BYTES)
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        try:
            upstream_writer.write(hello)
            both = [
                asyncio.ensure_future(self._forward(reader, upstream_writer, hello)),
                asyncio.ensure_future(self._forward(upstream_reader, writer, hello)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            await close(upstream_writer)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: bytes
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if any(caller.encode() in hello for caller in self._cut):
                await self._healed.wait()
                return
            writer.write(data)
            await writer.drain()
