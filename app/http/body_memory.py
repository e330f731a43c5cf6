"""
The memory budget for the bodies of all requests, from their first byte to the answer.

Bytes are charged when they arrive, not when Content-Length declares them, so a declaration takes no memory
from other requests. A request whose next byte does not fit is refused: its bytes are released at once, and
the rest of its body is discarded.

An eighth of the budget is reserved for small bodies. Once half is in use, one address may have at most a
quarter.
"""

from collections import Counter
from collections.abc import Callable

from app.http.errors import BodyMemoryFullError
from dedupe.model.errors import GatewayError

SMALL_BODY_BYTES = 256 * 1024
"""The limit of a request in the part for small bodies; batches of SDKs mostly have 10 KB."""

RESERVE = 1 / 8
"""The part of the budget for small bodies."""

ADDRESS_SHARE = 1 / 4
"""The part that one address may hold once half is in use."""


class BodyMemory:
    """The budget, in bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.refused = 0  # requests
        self._by_owner: Counter[str] = Counter()

    def has_capacity(self, owner: str | None, held: int, size: int) -> bool:
        """Whether a request that holds `held` bytes may take `size` more."""
        room = self.capacity
        if held + size > SMALL_BODY_BYTES:
            room -= int(self.capacity * RESERVE)
        if owner is not None and self._by_owner[owner] + size > self.capacity * ADDRESS_SHARE:
            room = min(room, self.capacity // 2)
        return self.used + size <= room

    def add(self, owner: str | None, size: int) -> None:
        """Count bytes that an owner reserves, or releases (negative); None: an unknown address."""
        self.used += size
        self.peak = max(self.peak, self.used)
        if owner is not None:
            self._by_owner[owner] += size
            if not self._by_owner[owner]:
                del self._by_owner[owner]


class MemoryReservation:
    """The memory that one request holds of the budget."""

    __slots__ = ("_memory", "_owner", "error", "held", "is_whole", "on_release", "waited_s")

    def __init__(
        self, memory: BodyMemory, owner: str | None = None, on_release: Callable[[], None] | None = None
    ) -> None:
        """`owner`: the address that is charged; `on_release`: called once at the end."""
        self._memory = memory
        self._owner = owner
        self.on_release = on_release
        self.held = 0
        self.error: GatewayError | None = None
        """Why the body cannot be read to its end, or None."""
        self.is_whole = False
        """Whether the whole body has arrived, so that reading it needs no timer."""
        self.waited_s = 0.0
        """The time for which the body was awaited, which is up to the client and its link."""

    def take(self, size: int) -> bool:
        """Charge more bytes; if they do not fit, release all, and refuse from now on."""
        if self.error is not None:
            return False
        if not self._memory.has_capacity(self._owner, self.held, size):
            self._memory.refused += 1
            self.fail(BodyMemoryFullError())
            return False
        self._add(size)
        return True

    def expect(self, size: int) -> None:
        """Refuse a body whose declared size does not fit now, before it is sent."""
        more = size - self.held
        if more > 0 and not self._memory.has_capacity(self._owner, self.held, more):
            self.take(more)

    def hold(self, size: int) -> None:
        """Replace the charge by another number of bytes. Raises BodyMemoryFullError."""
        self._give_back()
        self.take(size)
        self.check()

    def hold_parsed(self, body_bytes: int, more_bytes: int) -> None:
        """
        Charge a body and the memory of its parsed document. Raises BodyMemoryFullError.

        At most the share of an address is charged, so that an allowed body fits into an empty budget.
        """
        self.hold(max(body_bytes, min(body_bytes + more_bytes, int(self._memory.capacity * ADDRESS_SHARE))))

    def fail(self, err: GatewayError) -> None:
        """Refuse from now on, and release all bytes."""
        self.error = err
        self._give_back()

    def check(self) -> None:
        """Raise `error`, if there is one."""
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        """Release all bytes at the end of the request."""
        self.fail(BodyMemoryFullError("the request has ended"))
        if self.on_release is not None:
            self.on_release()
            self.on_release = None

    def _add(self, size: int) -> None:
        self._memory.add(self._owner, size)
        self.held += size

    def _give_back(self) -> None:
        self._add(-self.held)
