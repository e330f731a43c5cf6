"""
A cheap load generator: prebuilt requests over keep-alive connections, one under way on each.

It costs about 25 us of CPU a request, and as much again for 40 KB of it, most of that in the kernel.
"""

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import uvloop

from tests.support.processes import HOST


class Answered(NamedTuple):
    """What came of one run."""

    seconds: float
    client_cpu_seconds: float
    latencies_s: list[float]


class LoadError(Exception):
    """An answer that a benchmark cannot go on with."""


class _Sender(asyncio.Protocol):
    """One connection: sends the next request as soon as the last one is answered 200."""

    def __init__(self, waiting: Iterator[bytes], latencies_s: list[float]) -> None:
        loop = asyncio.get_running_loop()
        self.is_done: asyncio.Future[None] = loop.create_future()
        self.is_closed: asyncio.Future[None] = loop.create_future()
        self._waiting = waiting
        self._latencies_s = latencies_s
        self._answer = b""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def send(self) -> None:
        """Send the next request, or finish."""
        request = next(self._waiting, None)
        self._began = time.perf_counter()
        if request is not None:
            self._transport.write(request)
        elif not self.is_done.done():
            self.is_done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, blank, body = self._answer.partition(b"\r\n\r\n")
        if not blank or len(body) < _content_length(head):
            return
        self._latencies_s.append(time.perf_counter() - self._began)
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(LoadError(self._answer.decode(errors="replace")))
            return
        self._answer = b""
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed.set_result(None)
        self._fail(LoadError("the connection was closed"))

    def close(self) -> None:
        """Leave."""
        self._transport.close()

    def _fail(self, err: LoadError) -> None:
        if not self.is_done.done():
            self.is_done.set_exception(err)


def _content_length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def send_all(port: int | Sequence[int], requests: Sequence[bytes], connections: int) -> Answered:
    """
    Send every request once and wait for its answer; of several ports each gets as many.

    Raises:
        LoadError: an answer was not 200, or none came.
    """
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_send_all([port] if isinstance(port, int) else port, requests, connections))
    finally:
        gc.enable()


async def _send_all(ports: Sequence[int], requests: Sequence[bytes], connections: int) -> Answered:
    waiting, latencies_s = [iter(requests[place :: len(ports)]) for place in range(len(ports))], list[float]()
    loop = asyncio.get_running_loop()
    senders: list[_Sender] = []
    try:
        for number in range(min(connections, len(requests))):
            place = number % len(ports)
            sender = _Sender(waiting[place], latencies_s)
            await loop.create_connection(lambda: sender, HOST, ports[place])  # noqa: B023 - called at once
            senders.append(sender)
        began, cpu_began = time.perf_counter(), time.process_time()
        for sender in senders:
            sender.send()
        await asyncio.gather(*(sender.is_done for sender in senders))
        return Answered(time.perf_counter() - began, time.process_time() - cpu_began, latencies_s)
    finally:
        for sender in senders:
            sender.close()
        await asyncio.gather(*(sender.is_closed for sender in senders))
