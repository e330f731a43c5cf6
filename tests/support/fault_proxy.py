"""
An HTTP/1.1 proxy between an SDK and the gateway that strikes chosen requests, each with one fault.

It knows just enough HTTP for that: requests and answers have a Content-Length or no body, and one
request at a time is on a connection. Every request goes upstream on a connection of its own.
"""

import asyncio
import gzip
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer, close

END_OF_HEAD = b"\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
GZIPPED = re.compile(rb"\r\ncontent-encoding: *gzip", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
RETRY_AFTER_S = 1


class Fault(StrEnum):
    """What goes wrong with a request; its value is also the name of the events it strikes."""

    ANSWER_LOST_BY_FIN = "answer_lost_by_fin"
    ANSWER_LOST_BY_RST = "answer_lost_by_rst"
    ANSWER_LATE = "answer_late"
    ANSWER_TRUNCATED = "answer_truncated"
    TWO_COPIES = "two_copies"
    DELAYED_COPY = "delayed_copy"
    RETRY_AFTER = "retry_after"
    HALF_BODY = "half_body"


# The faults after which the gateway has not seen the request until it is sent again.
BEFORE_THE_GATEWAY = frozenset({Fault.DELAYED_COPY, Fault.HALF_BODY})


class Message(NamedTuple):
    """A request or an answer, as bytes."""

    head: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    def carries(self, fault: Fault) -> bool:
        """Whether one of its events has the fault's name."""
        text = gzip.decompress(self.body) if GZIPPED.search(self.head) else self.body
        return f'"{fault}"'.encode() in text


class FaultProxy(TCPServer):
    """
    Strikes the first request that carries an event named after a fault; all others pass.

    Whatever goes to the gateway is decided there before the client hears of it: when the client has
    finished, so has the gateway. `sent` counts the requests that carried a fault's events, `forwarded`
    the POSTs to the gateway and `answers` what it said to them (status, body).
    """

    def __init__(self, upstream_port: int, *, late_s_max: float, faults: Iterable[Fault] = Fault) -> None:
        """`late_s_max` bounds how long ANSWER_LATE waits for the client to give up."""
        super().__init__()
        self.sent: Counter[Fault] = Counter()
        self.forwarded = 0
        self.answers: Counter[tuple[int, bytes]] = Counter()
        self._upstream_port = upstream_port
        self._late_s_max = late_s_max
        self._pending = list(faults)
        self._delayed: dict[Fault, Message] = {}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def has_struck_all(self) -> bool:
        return not self._pending and not self._delayed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open = True
        while is_open:
            request = await _read_message(reader)
            self.sent.update(fault for fault in Fault if request.carries(fault))
            fault = next((fault for fault in self._pending if request.carries(fault)), None)
            if fault:
                self._pending.remove(fault)
            answer = await self._send_on(request, fault)
            is_open = await self._answer(answer, fault, reader, writer)

    async def _send_on(self, request: Message, fault: Fault | None) -> bytes:
        """Do to the gateway what the fault says; return its answer, if it gives one."""
        match fault:
            case Fault.TWO_COPIES:
                answer, _ = await asyncio.gather(self._forward(request), self._forward(request))
                return answer
            case Fault.DELAYED_COPY:
                self._delayed[fault] = request
                return b""
            case Fault.HALF_BODY:
                await self._forward_half(request)
                return b""
        answer = await self._forward(request)
        for late in [late for late in self._delayed if request.carries(late)]:
            await self._forward(self._delayed.pop(late))
        return answer

    async def _answer(
        self, answer: bytes, fault: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Do to the client what the fault says; return whether its connection goes on."""
        match fault:
            case Fault.ANSWER_LOST_BY_FIN | Fault.DELAYED_COPY:
                return False
            case Fault.ANSWER_LOST_BY_RST | Fault.HALF_BODY:
                _reset(writer)
                return False
            case Fault.ANSWER_TRUNCATED:
                writer.write(answer[:-5])
                return False
            case Fault.ANSWER_LATE if await _is_closed_within(reader, self._late_s_max):
                return False
            case Fault.RETRY_AFTER:
                answer = _told_to_wait(answer)
        writer.write(answer)
        await writer.drain()
        return True

    async def _forward(self, request: Message) -> bytes:
        """Return the gateway's whole answer."""
        is_counted = request.head.startswith(b"POST ")
        self.forwarded += is_counted
        reader, writer = await asyncio.open_connection(HOST, self._upstream_port)
        try:
            writer.write(request.raw)
            answer = await _read_message(reader)
        finally:
            await close(writer)
        if is_counted:
            self.answers[int(answer.head.split(b" ", 2)[1]), answer.body] += 1
        return answer.raw

    async def _forward_half(self, request: Message) -> None:
        _, writer = await asyncio.open_connection(HOST, self._upstream_port)
        writer.write(request.head + request.body[: len(request.body) // 2])
        await close(writer)


async def _read_message(reader: asyncio.StreamReader) -> Message:
    """Read one request or answer."""
    head = await reader.readuntil(END_OF_HEAD)
    assert not CHUNKED.search(head), "no client of these tests sends chunks"
    length = CONTENT_LENGTH.search(head)
    return Message(head, await reader.readexactly(int(length[1])) if length else b"")


async def _is_closed_within(reader: asyncio.StreamReader, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), timeout_s)
    except TimeoutError:
        return False
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST instead of FIN."""
    no_linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
    writer.transport.abort()


def _told_to_wait(answer: bytes) -> bytes:
    """Turn an answer into a 503 as the gateway would give it: a browser looks at its CORS headers."""
    body = b'{"code":"outcome_unknown","message":"the events may be stored"}'
    headers = CONTENT_LENGTH.sub(b"", answer.partition(END_OF_HEAD)[0]).split(b"\r\n")[1:]
    lines = [
        b"HTTP/1.1 503 Service Unavailable",
        *headers,
        b"Retry-After: %d" % RETRY_AFTER_S,
        b"Content-Length: %d" % len(body),
    ]
    return b"\r\n".join(lines) + END_OF_HEAD + body
