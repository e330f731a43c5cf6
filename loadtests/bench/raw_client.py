"""A small HTTP client for benchmarks: one connection, one request at a time, few microseconds each."""

import asyncio
import statistics
import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Self

from loadtests.bench.workload import make_bodies
from tests.support.processes import HOST

CONNECTIONS, REQUESTS_PER_S, BATCH_EVENTS = 6, 60.0, 20


class Connection:
    """One keep-alive connection that posts batches."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        """Take an open connection, and the header lines of each request."""
        self._reader = reader
        self._writer = writer
        self._head = b"POST /v1/batch HTTP/1.1\r\nHost: bench\r\n" + head + b"Content-Length: %d\r\n\r\n"

    @classmethod
    async def open(cls, port: int, head: bytes) -> Self:
        """Connect on loopback."""
        return cls(*await asyncio.open_connection(HOST, port), head)

    async def post(self, body: bytes) -> int:
        """Send one batch and return the status of its answer."""
        return await self.exchange(self._head % len(body) + body)

    async def exchange(self, request: bytes) -> int:
        """Send a whole request and return the status of its answer."""
        self._writer.write(request)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)
        return int(answer[9:12])

    def close(self) -> None:
        """Leave."""
        self._writer.close()


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which so many percent lie."""
    return statistics.quantiles(values, n=100)[percent - 1]


async def send_steadily(port: int, seconds: float, keys: Sequence[str]) -> list[float]:
    """Send batches of new events at an even pace for so long; return how long each answer took."""
    latencies: list[float] = []
    pause_s = CONNECTIONS / REQUESTS_PER_S
    waiting = iter(make_bodies(round(seconds * REQUESTS_PER_S) + 2 * CONNECTIONS, BATCH_EVENTS))

    async def send(number: int) -> None:
        connection = await Connection.open(port, authorization(keys[number % len(keys)]))
        due = time.perf_counter() + pause_s * number / CONNECTIONS
        end = time.perf_counter() + seconds
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            status = await connection.post(next(waiting))
            assert status == 200, status
            latencies.append(time.perf_counter() - began)
            due += pause_s
        connection.close()

    await asyncio.gather(*map(send, range(CONNECTIONS)))
    return latencies


def authorization(key: str) -> bytes:
    """Return the header line of a write key."""
    return b"Authorization: Basic %b\r\n" % b64encode(f"{key}:".encode())
