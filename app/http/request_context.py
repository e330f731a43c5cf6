"""What is known of one request while it runs: one object in its ASGI scope."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.client_address import address_group
from dedupe.model.types import Event

CONTEXT = "gateway"
"""Key of a request's context in its ASGI scope."""


@dataclass(slots=True)
class RequestContext:
    """A request, from its head to its answer."""

    lease: MemoryReservation
    """Memory for its body."""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """By lower-case name; of a field that stands twice, the last value."""
    request_id: str = ""
    """Stands in its answer and in log lines; "" on the admin port."""
    route: str = "unknown"
    """Template of its path, for metrics."""
    source: str | None = None
    """Who sends, once the write key is known."""
    client: str | None = None
    """Client of its session."""
    watched: Sequence[Event] = ()
    """Its events, those of the quarantine stream included, while an operator looks at the live tail."""


def begin_context(scope: Scope, memory: BodyMemory) -> RequestContext:
    """Put a context into the scope of a request whose connection has made none, and return it."""
    owner = address_group(scope["client"][0]) if scope["client"] else None
    context = scope[CONTEXT] = RequestContext(MemoryReservation(memory, owner))
    return context


class MemoryReservationMiddleware:
    """Wraps an application: each request gives its memory back when it ends."""

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
