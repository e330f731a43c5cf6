"""
Shares the event loop fairly between senders: work in pieces, and requests in flight.

Parsing and identifying hold the loop, so one round does no more than a few milliseconds of them, and each
sender in turn has a piece: beside a sender with many connections another one waits for one piece, not for
all of them. A round takes several polls of the sockets, as many as an answer takes on its way through
lanes and log: the answer waits for a round or two, not for one at each poll.

A sender with many connections also fills the loop outside of these pieces: each of its requests is read,
begun and answered, and each commit brings a wave of answers that brings a wave of requests. So beside
others only some of its requests are let in, and the rest wait, whole, in the memory that they hold. A lone
sender is let in at once, for large commits.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from dedupe.model.clock import Deadline
from dedupe.model.errors import LaneSaturatedError

ROUND_BYTES = 32 * 1024
"""Work of one round while several send; the piece that exceeds it is the round's last."""

LONE_ROUND_BYTES = 512 * 1024
"""Work of one round while only one sends, for large commits: 20 ms at most."""

POLLS_PER_ROUND = 16
"""How often the loop polls its sockets in one round while several send and some work has to wait."""

SHARED_S = 1.0
"""How long after a change of sender the loop counts as shared."""

PIECE_COST_BYTES = 2 * 1024
"""What a piece counts beside its bytes: a request as such costs as much as some kilobytes."""

IN_FLIGHT_BYTES_MAX = 256 * 1024
"""
Of one sender beside others, by REQUEST_COST_BYTES and the bodies; one request always. Three batches of
100 events, or 28 single ones: more than a commit takes, so that a flood loses nothing by it.
"""

REQUEST_COST_BYTES = 8 * 1024
"""What a request in flight counts beside its body: as such it costs the loop as much as ten events."""

COUNTED_S = 0.01
"""
How long a request counts as in flight: a commit or two. One that takes longer waits for a slow log or a
partition that hangs and costs the loop nothing, so its sender may have the next one: however slow the log
is, a share is 28 single requests, or three batches of 100 events, every 10 ms. With 5 ms a flood was felt.
"""

WAITING_BYTES_MAX = 32 * 1024 * 1024
"""How much of one sender may wait, one request always, from however many addresses."""

WAIT_SHARE = 1 / 2
"""
The part of a request's time that it may wait. Under a flood those that have waited longest are let in: with
no time left, each would be worked on and answered too late.
"""

YieldToOthers: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until work on so many bytes may go on."""


@dataclass(slots=True)
class _Sender:
    """The requests of one sender in flight."""

    held_bytes: int = 0
    waiting_bytes: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    def has_capacity(self, size_bytes: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size_bytes <= IN_FLIGHT_BYTES_MAX


class FairScheduler:
    """Used within one event loop."""

    def __init__(self, *, counted_s: float = COUNTED_S) -> None:
        """`counted_s`: how long a request counts as in flight."""
        self._counted_s = counted_s
        self._pieces: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()  # that wait
        self._left_bytes = 0
        self._is_round_open = False
        self._last_sender: str | None = None
        self._shared_until_s = 0.0
        self._senders: dict[str, _Sender] = {}  # with requests in flight

    @property
    def is_shared(self) -> bool:
        """Whether several have sent of late."""
        return asyncio.get_running_loop().time() < self._shared_until_s

    # ---- pieces of work

    async def yield_to_others(self, sender: str, size_bytes: int) -> None:
        """Return when a sender may work on so many bytes, at once where none of its work waits."""
        if sender != self._last_sender:
            if self._last_sender is not None:
                self._shared_until_s = asyncio.get_running_loop().time() + SHARED_S
            self._last_sender = sender
        if not self._is_round_open:
            self._begin_round()
        if self._left_bytes > 0 and not self._pieces:
            self._left_bytes -= size_bytes + PIECE_COST_BYTES
            return
        turn = asyncio.get_running_loop().create_future()
        self._pieces.setdefault(sender, deque()).append((size_bytes, turn))
        await turn

    def _begin_round(self) -> None:
        """Hand the round's work to those who wait, one piece for each sender in turn."""
        is_shared = self.is_shared
        self._left_bytes = ROUND_BYTES if is_shared else LONE_ROUND_BYTES
        while self._pieces and self._left_bytes > 0:
            sender, pieces = next(iter(self._pieces.items()))
            size_bytes, turn = pieces.popleft()
            if pieces:
                self._pieces.move_to_end(sender)
            else:
                del self._pieces[sender]
            if not turn.done():  # a client may have left meanwhile
                turn.set_result(None)
                self._left_bytes -= size_bytes + PIECE_COST_BYTES
        self._is_round_open = True
        polls = POLLS_PER_ROUND if is_shared else 1
        asyncio.get_running_loop().call_soon(self._end_round, polls)  # after what was handed out

    def _end_round(self, polls_left: int) -> None:
        if polls_left > 1 and (self._pieces or self._left_bytes <= 0):
            asyncio.get_running_loop().call_soon(self._end_round, polls_left - 1)
        elif self._pieces:
            self._begin_round()
        else:
            self._is_round_open = False

    # ---- requests in flight

    @asynccontextmanager
    async def slot(self, sender: str, body_bytes: int, deadline: Deadline) -> AsyncIterator[None]:
        """
        Work on a request inside; waits until its sender may have one more in flight.

        Raises:
            LaneSaturatedError: too much waits, or half of the time is over; nothing was begun.
        """
        size_bytes = body_bytes + REQUEST_COST_BYTES
        requests = self._senders.setdefault(sender, _Sender())
        if self.is_shared and (requests.waiting or not requests.has_capacity(size_bytes)):
            await self._wait(sender, size_bytes, deadline.remaining_s * WAIT_SHARE)
        else:
            requests.held_bytes += size_bytes
        is_counted = True

        def count_off() -> None:
            nonlocal is_counted
            if is_counted:
                is_counted = False
                self._leave(sender, size_bytes)

        timer = asyncio.get_running_loop().call_later(self._counted_s, count_off)
        try:
            yield
        finally:
            timer.cancel()
            count_off()

    async def _wait(self, sender: str, size_bytes: int, timeout_s: float) -> None:
        """Return once `_leave` has let the request in."""
        requests = self._senders[sender]
        if requests.waiting_bytes and requests.waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            raise LaneSaturatedError(f"{requests.waiting_bytes} bytes of its sender are waiting")
        let_in = asyncio.get_running_loop().create_future()
        requests.waiting.append((size_bytes, let_in))
        requests.waiting_bytes += size_bytes
        try:
            async with asyncio.timeout(timeout_s):
                await let_in
        except BaseException as err:
            if let_in.done() and not let_in.cancelled():  # in the same turn of the loop
                self._leave(sender, size_bytes)
            if isinstance(err, TimeoutError):
                raise LaneSaturatedError from err
            raise
        finally:
            requests.waiting_bytes -= size_bytes

    def _leave(self, sender: str, size_bytes: int) -> None:
        """Count a request off, and let in those that have a place now."""
        requests = self._senders[sender]
        requests.held_bytes -= size_bytes
        while requests.waiting:
            size_bytes, let_in = requests.waiting[0]
            if not let_in.done():  # its client may have left meanwhile
                if self.is_shared and not requests.has_capacity(size_bytes):
                    return
                requests.held_bytes += size_bytes
                let_in.set_result(None)
            requests.waiting.popleft()
        if requests.held_bytes == 0:
            del self._senders[sender]
