"""One request as uvicorn runs it, and what its connection adds to that."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.body_memory import Lease
from app.http.request_context import CONTEXT


class Connection(Protocol):
    """The connection as its requests need it."""

    transport: asyncio.Transport

    def linger(self) -> None:
        """Close the connection, but not before the client could read its answer."""


class RequestTransport:
    """
    The connection as a request sees it: to close it is to linger, and an answer is written in one piece.

    Uvicorn writes head and body one after the other, which are two calls of the system, and two packets.
    """

    __slots__ = ("_connection", "_cycle", "_head", "_write", "is_closing")

    def __init__(self, connection: Connection) -> None:
        """Take the connection, whose transport is there already."""
        self._connection: Connection | None = connection
        self._write: Callable[[bytes], None] = connection.transport.write
        self.is_closing: Callable[[], bool] = connection.transport.is_closing
        self._cycle: RequestResponseCycle | None = None  # whose head is still to be written
        self._head = b""

    def begin(self, cycle: RequestResponseCycle) -> None:
        """What is written from now on answers this request."""
        self._cycle = cycle

    def write(self, data: bytes) -> None:
        """Write a part of an answer; its head waits for what follows, or for `end`."""
        if self._cycle is not None and self._cycle.response_started:  # else it is 100 Continue
            self._cycle, self._head = None, data
        else:
            head, self._head = self._head, b""
            self._write(head + data)

    def end(self) -> None:
        """The answer is complete, or nothing will follow."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """End the connection as soon as the client can have read its answer."""
        self.end()
        if self._connection is not None:
            self._connection.linger()

    def release(self) -> None:
        """Hold the connection no longer: the cycle collector would come late, and find thousands."""
        self._connection = self._cycle = None


def lease_of(cycle: RequestResponseCycle) -> Lease:
    """Return what a request holds of the memory for bodies."""
    lease: Lease = cycle.scope[CONTEXT].lease  # type: ignore[literal-required]
    return lease


def closing_unless_continued(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """
    Wrap the application of a request whose client waits for 100 Continue before it sends the body.

    Whether a body follows a final answer that it gets instead, nobody can know, nor where the next
    request begins.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_last)

    return run


def drop(cycle: RequestResponseCycle) -> None:
    """Forget a request that was never started: what it holds, and the connection that holds it."""
    lease_of(cycle).release()
    cycle.on_response = _do_nothing


def _do_nothing() -> None:
    pass
