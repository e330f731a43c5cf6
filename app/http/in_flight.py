"""
Requests in flight: how many of one sender's are worked on at a time while several send.

Whoever has many connections fills the loop with more than his turns: each of his requests is read,
begun and answered, and each commit brings a wave of answers that brings a wave of requests. So beside
others only some of them are let in, and the rest wait, whole, in the memory that they hold anyway. Who
sends alone is let in at once, for large commits.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.http.turns import Turns
from dedupe.clock import Deadline
from dedupe.errors import LaneSaturatedError

IN_FLIGHT_BYTES_MAX = 256 * 1024
"""
Of one sender beside others, by REQUEST_COST_BYTES and the bodies; one request always. Three batches of
100 events, or 28 single ones: more than a commit takes, so that a flood loses nothing by it.
"""

REQUEST_COST_BYTES = 8 * 1024
"""What a request counts beside its body: as such it costs the loop as much as ten events."""

COUNTED_S = 0.01
"""
How long a request counts: a commit or two. One that takes longer waits for a slow log or a partition that
hangs and costs the loop nothing, so its sender may have the next one: however slow the log is, a share
is 28 single requests, or three batches of 100 events, every 10 ms. With 5 ms a flood was felt again.
"""

WAITING_BYTES_MAX = 32 * 1024 * 1024
"""
What of one sender may wait, one request always, from however many addresses: the memory for bodies is
everybody's.
"""

WAIT_SHARE = 1 / 2
"""
Of a request's time, how much it may wait. Under a flood all are let in that have waited longest: with no
time left, each would be worked on and answered too late.
"""


@dataclass(slots=True)
class _Sender:
    held_bytes: int = 0
    waiting_bytes: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    def has_room(self, size_bytes: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size_bytes <= IN_FLIGHT_BYTES_MAX


class InFlight:
    """Lets requests in; used within one event loop."""

    def __init__(self, turns: Turns, *, counted_s: float = COUNTED_S) -> None:
        """Take what knows whether several send; who was let in takes his turns there."""
        self.turns = turns
        self._counted_s = counted_s
        self._senders: dict[str, _Sender] = {}

    @asynccontextmanager
    async def room(self, sender_name: str, body_bytes: int, deadline: Deadline) -> AsyncIterator[None]:
        """
        Work on a request inside; waits until its sender may have one more under way.

        Raises:
            LaneSaturatedError: too much waits, or half of the time is over; nothing was begun.
        """
        size_bytes = body_bytes + REQUEST_COST_BYTES
        sender = self._senders.setdefault(sender_name, _Sender())
        if self.turns.is_shared and (sender.waiting or not sender.has_room(size_bytes)):
            await self._wait(sender_name, size_bytes, deadline.remaining_s * WAIT_SHARE)
        else:
            sender.held_bytes += size_bytes
        is_counted = True

        def count_off() -> None:
            nonlocal is_counted
            if is_counted:
                is_counted = False
                self._leave(sender_name, size_bytes)

        timer = asyncio.get_running_loop().call_later(self._counted_s, count_off)
        try:
            yield
        finally:
            timer.cancel()
            count_off()

    async def _wait(self, sender_name: str, size_bytes: int, timeout_s: float) -> None:
        """Return once `_leave` has let the request in."""
        sender = self._senders[sender_name]
        if sender.waiting_bytes and sender.waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            raise LaneSaturatedError(f"{sender.waiting_bytes} bytes of its sender are waiting")
        let_in = asyncio.get_running_loop().create_future()
        sender.waiting.append((size_bytes, let_in))
        sender.waiting_bytes += size_bytes
        try:
            async with asyncio.timeout(timeout_s):
                await let_in
        except BaseException as err:
            if let_in.done() and not let_in.cancelled():  # in the same turn of the loop
                self._leave(sender_name, size_bytes)
            if isinstance(err, TimeoutError):
                raise LaneSaturatedError from err
            raise
        finally:
            sender.waiting_bytes -= size_bytes

    def _leave(self, sender_name: str, size_bytes: int) -> None:
        """Count a request off, and let in what has room now."""
        sender = self._senders[sender_name]
        sender.held_bytes -= size_bytes
        while sender.waiting:
            size_bytes, let_in = sender.waiting[0]
            if not let_in.done():  # its client may have left meanwhile
                if self.turns.is_shared and not sender.has_room(size_bytes):
                    return
                sender.held_bytes += size_bytes
                let_in.set_result(None)
            sender.waiting.popleft()
        if sender.held_bytes == 0:
            del self._senders[sender_name]
