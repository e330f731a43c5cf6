"""Claim: the load generator sends each request once, and no figure is made of answers that are not 200."""

import asyncio

import pytest

from loadtests.bench.load import LoadError, send_all
from tests.support.tcp_server import TCPServer

REQUEST_BYTES = 4


class Answering(TCPServer):
    """Answers every request the same, in two pieces."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer
        self.came: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(REQUEST_BYTES):
            self.came.append(request)
            for piece in (self.answer[:20], self.answer[20:]):
                writer.write(piece)
                await writer.drain()


async def test_each_request_is_sent_once() -> None:
    requests = [b"%04d" % number for number in range(50)]
    async with Answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as server:
        answered = await asyncio.to_thread(send_all, server.port, requests, connections=4)
    assert sorted(server.came) == requests
    assert len(answered.latencies_s) == len(requests)


async def test_an_error_ends_the_run() -> None:
    async with Answering(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n") as server:
        with pytest.raises(LoadError, match="503"):
            await asyncio.to_thread(send_all, server.port, [b"abcd"] * 10, connections=2)
