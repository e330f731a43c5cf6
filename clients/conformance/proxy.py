"""A proxy between a client and the gateway that gives chosen requests another answer, or none."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.fault_proxy import CONTENT_LENGTH, Message, read_message
from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer, close

ENDLESS_BYTES, PIECE_BYTES = 8 << 20, 1 << 16
DRIPPING_S, DRIP_S = 30.0, 0.1


@dataclass(frozen=True, slots=True)
class Canned:
    """An answer instead of the gateway's; None as its content: one without an end."""

    status: int
    content: bytes | None
    is_gateways: bool = False
    retry_after_s: int = 0
    """That it asks for; 0 if it does not."""

    def head(self) -> bytes:
        length = ENDLESS_BYTES if self.content is None else len(self.content)
        lines = [b"HTTP/1.1 %d Canned" % self.status, b"Content-Length: %d" % length, b"Connection: close"]
        lines += [b"Gateway-Request-Id: canned-1"] * self.is_gateways
        lines += [b"Retry-After: %d" % self.retry_after_s] * bool(self.retry_after_s)
        return b"\r\n".join([*lines, b"\r\n"])


PASS, LOSE_ANSWER, LOSE_REQUEST, CUT_ANSWER = "pass", "lose answer", "lose request", "cut answer"
DRIP = "an answer that comes byte by byte"
Fault = str | Canned
Choose = Callable[[Message], Fault]


class Proxy(TCPServer):
    """
    Serves from a thread of its own.

    Attributes:
        choose: chooses what happens to each request.
        upstream_port: of the gateway.
        requests: how many have arrived.
    """

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self.upstream_port = upstream_port
        self.choose: Choose = lambda _request: PASS
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.__aexit__(kind, err, traceback), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open = True
        while is_open:
            request = await read_message(reader)
            self.requests += 1
            is_open = await self._answer(request, self.choose(request), writer)

    async def _answer(self, request: Message, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether its connection goes on."""
        if isinstance(fault, Canned):
            writer.write(fault.head() + (fault.content or b""))
            for _ in range(0, ENDLESS_BYTES if fault.content is None else 0, PIECE_BYTES):
                writer.write(b"x" * PIECE_BYTES)
                await writer.drain()
            await writer.drain()
            return False
        if fault == LOSE_REQUEST:
            return False
        if fault == DRIP:
            writer.write(Canned(200, None, is_gateways=True).head())
            for _ in range(int(DRIPPING_S / DRIP_S)):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(DRIP_S)
            return False
        answer = await self._forward(request)
        if fault == LOSE_ANSWER:
            return False
        writer.write(answer[:-3] if fault == CUT_ANSWER else answer)
        await writer.drain()
        return fault == PASS

    async def _forward(self, request: Message) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self.upstream_port)
        try:
            writer.write(request.raw)
            return (await read_message(reader)).raw
        finally:
            await close(writer)


def size_of(request: Message) -> int:
    """Return the number of bytes of a request's body."""
    found = CONTENT_LENGTH.search(request.head)
    return int(found[1]) if found else 0
