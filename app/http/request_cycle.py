"""One request as uvicorn runs it, and what its connection adds to that."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.body_memory import LEASE, Lease


class Connection(Protocol):
    """The connection as its requests need it."""

    transport: asyncio.Transport

    def linger(self) -> None:
        """Close the connection, but not before the client could read its answer."""


class RequestTransport:
    """The connection as a request sees it: to close it is to linger."""

    __slots__ = ("_connection", "is_closing", "write")

    def __init__(self, connection: Connection) -> None:
        """Take the connection, whose transport is there already."""
        self._connection: Connection | None = connection
        self.write: Callable[[bytes], None] = connection.transport.write
        self.is_closing: Callable[[], bool] = connection.transport.is_closing

    def close(self) -> None:
        """End the connection as soon as the client can have read its answer."""
        if self._connection is not None:
            self._connection.linger()

    def release(self) -> None:
        """Hold the connection no longer: the cycle collector would come late, and find thousands."""
        self._connection = None


def lease_of(cycle: RequestResponseCycle) -> Lease:
    """Return what a request holds of the memory for bodies."""
    lease: Lease = cycle.scope[LEASE]  # type: ignore[literal-required]
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
