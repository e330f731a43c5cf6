"""A TCP proxy that lets every request through and loses some of the answers, by a seeded plan."""

import asyncio
import random
from types import TracebackType
from typing import Self

from tests.support.processes import HOST

ANSWER_BYTES_MAX = 1 << 20


class LossyProxy:
    """
    Forwards bytes both ways; where an answer is to be lost, its first bytes end the connection instead.

    So the gateway has done its work and believes it was heard, while the client sees the connection
    close. Never more than `losses_in_a_row_max` answers are lost one after another.
    """

    def __init__(self, upstream_port: int, *, seed: int, loss: float, losses_in_a_row_max: int = 2) -> None:
        self.lost = 0
        self._upstream_port = upstream_port
        self._random = random.Random(seed)
        self._loss = loss
        self._losses_in_a_row_max = losses_in_a_row_max
        self._losses_in_a_row = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        requests = asyncio.ensure_future(_copy(reader, upstream_writer))
        try:
            while answer := await upstream_reader.read(ANSWER_BYTES_MAX):
                if self._is_lost():
                    break
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            requests.cancel()
            writer.close()
            upstream_writer.close()

    def _is_lost(self) -> bool:
        is_lost = self._losses_in_a_row < self._losses_in_a_row_max and self._random.random() < self._loss
        self._losses_in_a_row = self._losses_in_a_row + 1 if is_lost else 0
        self.lost += is_lost
        return is_lost


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(ANSWER_BYTES_MAX):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
