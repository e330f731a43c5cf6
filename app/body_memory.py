"""
One memory budget for the bodies of all requests, from the first byte that arrives to the answer.

A byte is charged before it is kept; a request whose next byte does not fit is refused, its bytes are
given back at once, and the rest of its body is thrown away as it arrives. Charging what has come,
not what was announced, means that an announcement alone takes nothing from others; those who lose
are those who ask when nothing is left, and as many large bodies as fit are always completed.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import BodyMemoryFullError
from dedupe.errors import GatewayError

LEASE = "gateway.lease"
"""Where a request's lease stands in its ASGI scope."""


_RELEASED = BodyMemoryFullError("the request has ended")


class BodyMemory:
    """The budget, in bytes."""

    def __init__(self, capacity: int) -> None:
        """Begin with nothing used."""
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.refused = 0  # requests


class Lease:
    """What one request holds of the budget."""

    __slots__ = ("_memory", "error", "held", "on_release")

    def __init__(self, memory: BodyMemory, on_release: Callable[[], None] | None = None) -> None:
        """Hold nothing yet; `on_release` is called once at the end."""
        self._memory = memory
        self.on_release = on_release
        self.held = 0
        self.error: GatewayError | None = None
        """Why the body cannot be read to its end, once that is so."""

    def take(self, size: int) -> bool:
        """Charge more bytes; where they do not fit, give all back and refuse from now on."""
        if self.error is not None:
            return False
        memory = self._memory
        if memory.used + size > memory.capacity:
            memory.refused += 1
            self.fail(BodyMemoryFullError())
            return False
        memory.used += size
        self.held += size
        memory.peak = max(memory.peak, memory.used)
        return True

    def expect(self, size: int) -> None:
        """Refuse a body that is announced and could not fit now, before it is sent."""
        if self._memory.used - self.held + size > self._memory.capacity:
            self.take(size)

    def hold(self, size: int) -> None:
        """Hold so many bytes instead: what became of the body. Raises BodyMemoryFullError."""
        self._memory.used -= self.held
        self.held = 0
        self.take(size)
        self.check()

    def fail(self, err: GatewayError) -> None:
        """Refuse from now on, and give all back."""
        self.error = err
        self._memory.used -= self.held
        self.held = 0

    def check(self) -> None:
        """Raise why the body cannot be read, if so."""
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        """Give all back, for good."""
        self.fail(_RELEASED)
        if self.on_release is not None:
            self.on_release()
            self.on_release = None


class Leased:
    """Wraps an application: every request has a lease, and loses it when it ends."""

    def __init__(self, app: ASGIApp, memory: BodyMemory) -> None:
        """Wrap an application. The connection may have put a lease there before."""
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lease: Lease = scope.setdefault(LEASE, Lease(self._memory))
        try:
            await self._app(scope, receive, send)
        finally:
            lease.release()
