"""Extensions of uvicorn's request cycle."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.body_memory import MemoryReservation
from app.http.request_context import CONTEXT


class Connection(Protocol):
    """The connection of a request."""

    transport: asyncio.Transport

    def linger(self) -> None:
        """Close the connection after the client has had time to read its answer."""


class RequestTransport:
    """
    The transport of a request: `close` lingers, and head and body of an answer are written at once.

    Uvicorn writes them one after the other, in two system calls and two packets.
    """

    __slots__ = ("_connection", "_cycle", "_head", "_write", "is_closing")

    def __init__(self, connection: Connection) -> None:
        """`connection` must have its transport."""
        self._connection: Connection | None = connection
        self._write: Callable[[bytes], None] = connection.transport.write
        self.is_closing: Callable[[], bool] = connection.transport.is_closing
        self._cycle: RequestResponseCycle | None = None  # whose head is not written yet
        self._head = b""

    def begin(self, cycle: RequestResponseCycle) -> None:
        """Begin the answer of a request."""
        self._cycle = cycle

    def write(self, data: bytes) -> None:
        """Write a part of an answer; its head waits for the next part, or for `end`."""
        if self._cycle is not None and self._cycle.response_started:  # else it is 100 Continue
            self._cycle, self._head = None, data
        else:
            head, self._head = self._head, b""
            self._write(head + data)

    def end(self) -> None:
        """End the answer, complete or not."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """End the connection after the client has had time to read its answer."""
        self.end()
        if self._connection is not None:
            self._connection.linger()

    def release(self) -> None:
        """Drop the reference to the connection, so that no cycle waits for the garbage collector."""
        self._connection = self._cycle = None


def reservation_of(cycle: RequestResponseCycle) -> MemoryReservation:
    """Return a request's reservation of memory for its body."""
    lease: MemoryReservation = cycle.scope[CONTEXT].lease  # type: ignore[literal-required]
    return lease


def closing_unless_continued(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """
    Wrap the application of a request whose client waits for 100 Continue before it sends the body.

    After a final answer instead, neither side knows whether a body follows, so the connection ends.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_last)

    return run


def drop(cycle: RequestResponseCycle) -> None:
    """Release the memory of a request that was not started, and its reference to the connection."""
    reservation_of(cycle).release()
    cycle.on_response = _do_nothing


def _do_nothing() -> None:
    pass
