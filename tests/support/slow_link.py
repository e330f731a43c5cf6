"""A link to a server of which chosen connections are cut, cut short, delayed or slow."""

import asyncio
from random import Random

from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer, close

CHUNK_BYTES = 16 * 1024
DELAY_S = 0.2


class SlowLink(TCPServer):
    """Relays connections; by chance one ends in the middle of an answer, or is late."""

    def __init__(self, upstream_port: int, rng: Random, *, faults: float = 0.0) -> None:
        """`faults` is the part of connections that are struck."""
        super().__init__()
        self._upstream_port = upstream_port
        self._rng = rng
        self.faults = faults
        self.struck = 0
        self.bytes_a_second: float | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        is_struck = self._rng.random() < self.faults
        bytes_max = self._rng.randrange(40_000) if is_struck and self._rng.random() < 0.7 else None
        self.struck += is_struck
        try:
            if is_struck:
                await asyncio.sleep(DELAY_S)
            there = asyncio.create_task(self._relay(reader, upstream_writer, None))
            try:
                await self._relay(upstream_reader, writer, bytes_max)
            finally:
                there.cancel()
                await asyncio.gather(there, return_exceptions=True)
        finally:
            await close(upstream_writer)

    async def _relay(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, bytes_max: int | None
    ) -> None:
        passed = 0
        while chunk := await source.read(CHUNK_BYTES):
            if bytes_max is not None and passed + len(chunk) > bytes_max:
                sink.write(chunk[: bytes_max - passed])
                await sink.drain()
                return
            passed += len(chunk)
            sink.write(chunk)
            await sink.drain()
            if self.bytes_a_second is not None:
                await asyncio.sleep(len(chunk) / self.bytes_a_second)
