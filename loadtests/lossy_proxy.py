"""A TCP proxy that lets every request through and loses some of the answers, by a seeded plan."""

import asyncio
import random

from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer

ANSWER_BYTES_MAX = 1 << 20


class LossyProxy(TCPServer):
    """
    Forwards bytes both ways; where an answer is to be lost, its first bytes end the connection instead.

    So the gateway has done its work and believes it was heard. Never more than
    `losses_in_a_row_max` answers are lost one after another.
    """

    def __init__(self, upstream_port: int, *, seed: int, loss: float, losses_in_a_row_max: int = 2) -> None:
        super().__init__()
        self.lost = 0
        self._upstream_port = upstream_port
        self._random = random.Random(seed)
        self._loss = loss
        self._losses_in_a_row_max = losses_in_a_row_max
        self._losses_in_a_row = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        requests = asyncio.ensure_future(_copy(reader, upstream_writer))
        try:
            while answer := await upstream_reader.read(ANSWER_BYTES_MAX):
                if self._is_lost():
                    break
                writer.write(answer)
                await writer.drain()
        finally:
            requests.cancel()
            upstream_writer.close()
            await asyncio.gather(requests, return_exceptions=True)

    def _is_lost(self) -> bool:
        is_lost = self._losses_in_a_row < self._losses_in_a_row_max and self._random.random() < self._loss
        self._losses_in_a_row = self._losses_in_a_row + 1 if is_lost else 0
        self.lost += is_lost
        return is_lost


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(ANSWER_BYTES_MAX):
        writer.write(data)
        await writer.drain()
