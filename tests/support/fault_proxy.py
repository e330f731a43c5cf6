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
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

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


class Message(NamedTuple):
    """A request or an answer, as bytes."""

    head: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    def events(self) -> list[dict[str, Any]]:
        """Return the events of a request: a batch, a single one, or none."""
        if not self.body:
            return []
        document = orjson.loads(gzip.decompress(self.body) if GZIPPED.search(self.head) else self.body)
        events: list[dict[str, Any]] = document.get("batch", [document])
        return events

    def ids(self) -> set[str | bytes]:
        """Return what tells its events from all others: their ids, or all that they say."""
        return {event.get("messageId") or orjson.dumps(event) for event in self.events()}


class FaultProxy(TCPServer):
    """
    Strikes the first request that carries an event named after a fault; all others pass.

    Whatever goes to the gateway is decided there before the client hears of it: when the client has
    finished, so has the gateway.

    Attributes:
        sent_again: the faults of which a struck event came once more.
        forwarded: how many POSTs went to the gateway whole.
        answers: what it said to them, as (status, body).
    """

    def __init__(self, upstream_port: int, *, late_s_max: float) -> None:
        """`late_s_max` bounds how long ANSWER_LATE waits for the client to give up."""
        super().__init__()
        self.sent_again: set[Fault] = set()
        self.forwarded = 0
        self.answers: Counter[tuple[int, bytes]] = Counter()
        self._upstream_port = upstream_port
        self._late_s_max = late_s_max
        self._pending = set(Fault)
        self._struck_ids: dict[str | bytes, Fault] = {}
        self._delayed: Message | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def has_struck_all(self) -> bool:
        return not self._pending and self._delayed is None

    @property
    def is_settled(self) -> bool:
        """Whether the gateway has answered all that it was sent."""
        return self.forwarded == self.answers.total()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open = True
        while is_open:
            request = await read_message(reader)
            fault = self._fault_of(request)
            answer = await self._send_on(request, fault)
            is_open = await self._answer(answer, fault, reader, writer)

    def _fault_of(self, request: Message) -> Fault | None:
        """Choose the fault that strikes the request, and note which others its events had met."""
        ids = request.ids()
        self.sent_again.update(self._struck_ids[message_id] for message_id in ids & self._struck_ids.keys())
        names = {event["event"] for event in request.events()}
        fault = next((fault for fault in self._pending if fault in names), None)
        if fault:
            self._pending.remove(fault)
            self._struck_ids |= dict.fromkeys(ids, fault)
        return fault

    async def _send_on(self, request: Message, fault: Fault | None) -> bytes:
        """Do to the gateway what the fault says; return its answer, if it gives one."""
        match fault:
            case Fault.DELAYED_COPY:
                self._delayed = request
                return b""
            case Fault.HALF_BODY:
                await self._forward_half(request)
                return b""
            case Fault.TWO_COPIES:
                answer, _ = await asyncio.gather(self._forward(request), self._forward(request))
            case _:
                answer = await self._forward(request)
        if self._delayed and self._delayed.ids() & request.ids():
            delayed, self._delayed = self._delayed, None
            await self._forward(delayed)
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
            answer = await read_message(reader)
        finally:
            await close(writer)
        if is_counted:
            self.answers[int(answer.head.split(b" ", 2)[1]), answer.body] += 1
        return answer.raw

    async def _forward_half(self, request: Message) -> None:
        _, writer = await asyncio.open_connection(HOST, self._upstream_port)
        writer.write(request.head + request.body[: len(request.body) // 2])
        await close(writer)


async def read_message(reader: asyncio.StreamReader) -> Message:
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
