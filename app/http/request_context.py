"""The context of a request, in its ASGI scope."""

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.client_address import address_group
from dedupe.model.errors import GatewayError
from dedupe.model.types import Event

CONTEXT = "gateway"
"""Key of a request's context in its ASGI scope."""


class HeldConnection(Protocol):
    """A connection whose answers may have to wait."""

    def hold(self, wait: asyncio.Future[None] | None) -> None:
        """Note the wait of an answer, which is cancelled if the connection has to go; None: it is over."""


@dataclass(slots=True)
class RequestContext:
    """A request, from its head to its answer."""

    lease: MemoryReservation
    """Memory for its body."""
    unknown_behind: str | None = None
    """The address of its trusted proxy, if this does not say who the client is."""
    connection: weakref.ref[HeldConnection] | None = None
    """Its connection; weak, since the connection keeps the scope."""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """By lower-case name; the last value of a repeated field."""
    request_id: str = ""
    """Part of its answer and of log lines; "" on the admin port."""
    route: str = "unknown"
    """Template of its path, for metrics."""
    write_key: str = ""
    """Its write key, if it was read, whether known or not."""
    account: object = None
    """What the write key stands for, once it is read: an app.auth.write_keys.Source."""
    source: str | None = None
    """Its source, once the write key is read."""
    source_hash: Callable[[str], bytes] | None = None
    """Hashes its source for its answer; None on paths whose answers do not tell."""
    damage: GatewayError | None = None
    """What is wrong with its body, of which the rest was read; counted as a refusal of its own."""
    has_counted_events: bool = False
    """Whether its events are in the counts of answers, whatever its answer."""
    client: str | None = None
    """Client of its session."""
    watched: Sequence[Event] = ()
    """Its events, quarantined ones included, while the live tail has a reader."""

    def note_damage(self, err: GatewayError) -> None:
        """Note what is wrong with the body."""
        self.damage = err


def begin_context(scope: Scope, memory: BodyMemory) -> RequestContext:
    """Return a new context of a request whose connection has created none."""
    owner = address_group(scope["client"][0]) if scope["client"] else None
    context = scope[CONTEXT] = RequestContext(MemoryReservation(memory, owner))
    return context


class MemoryReservationMiddleware:
    """Wraps an application: each request releases its memory at its end."""

    def __init__(self, app: ASGIApp, memory: BodyMemory) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        context: RequestContext = scope.get(CONTEXT) or begin_context(scope, self._memory)
        try:
            await self._app(scope, receive, send)
        finally:
            context.lease.release()
