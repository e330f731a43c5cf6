"""
Shares the event loop fairly among senders: pieces of work, and requests in flight.

Parsing and identifying block the event loop. So a round processes a few milliseconds of work, one piece of
each sender in turn: a sender waits for one piece of a sender with many connections, not for all. A round
lasts several polls of the sockets, about as many as an answer needs on its way through lanes and log.

A sender with many connections also uses the loop outside of these pieces, to read, begin and answer requests.
So while there are others, only some of its requests are admitted, and the rest wait with their bodies. A lone
sender is not limited, for large commits.
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

LARGE_PIECE_BYTES = 64 * 1024
"""A larger piece exceeds no round in which more than ROUND_BYTES are done: it begins the next one."""

LONE_ROUND_BYTES = 512 * 1024
"""Work of one round while only one sends, for large commits: 20 ms at most."""

POLLS_PER_ROUND = 16
"""Polls of the sockets in one round while several send and some work waits."""

SHARED_S = 1.0
"""How long after a change of sender the loop counts as shared."""

PIECE_COST_BYTES = 2 * 1024
"""The cost of a piece besides its bytes."""

IN_FLIGHT_BYTES_MAX = 256 * 1024
"""
The limit of one sender among others, of bodies and REQUEST_COST_BYTES; one request is always admitted. It is
three batches of 100 events, or 28 single ones, more than a commit has.
"""

REQUEST_COST_BYTES = 8 * 1024
"""The cost of a request in flight besides its body, that of about ten events."""

COUNTED_S = 0.01
"""
How long a request counts as in flight: one or two commits. A longer request waits for the log, and does not
use the event loop. So a sender is admitted 28 single requests, or three batches of 100 events, in 10 ms, even
if the log is slow.
"""

WAITING_BYTES_MAX = 32 * 1024 * 1024
"""The limit of one sender's waiting requests; one may always wait."""

WAIT_SHARE = 1 / 2
"""
The part of its time limit that a request may wait. Requests that have waited longest are admitted first: with
no time left, each would be processed and answered too late.
"""

YieldToOthers: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until work on this number of bytes may continue."""


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
        self._round_bytes = self._left_bytes = 0
        self._is_round_open = False
        self._last_sender: str | None = None
        self._shared_until_s = 0.0
        self._senders: dict[str, _Sender] = {}  # with requests in flight

    @property
    def is_shared(self) -> bool:
        """Whether several senders have sent within SHARED_S."""
        return asyncio.get_running_loop().time() < self._shared_until_s

    # ---- pieces of work

    async def yield_to_others(self, sender: str, size_bytes: int) -> None:
        """Return when a sender may process this number of bytes, at once if no work waits."""
        if sender != self._last_sender:
            if self._last_sender is not None:
                self._shared_until_s = asyncio.get_running_loop().time() + SHARED_S
            self._last_sender = sender
        if not self._is_round_open:
            self._begin_round()
        if not self._pieces and self._has_room(size_bytes):
            self._left_bytes -= size_bytes + PIECE_COST_BYTES
            return
        turn = asyncio.get_running_loop().create_future()
        self._pieces.setdefault(sender, deque()).append((size_bytes, turn))
        await turn

    def _begin_round(self) -> None:
        """Start the waiting pieces of the round, one of each sender in turn."""
        is_shared = self.is_shared
        self._round_bytes = self._left_bytes = ROUND_BYTES if is_shared else LONE_ROUND_BYTES
        while self._pieces:
            sender, pieces = next(iter(self._pieces.items()))
            size_bytes, turn = pieces[0]
            if not self._has_room(size_bytes):
                break
            pieces.popleft()
            if pieces:
                self._pieces.move_to_end(sender)
            else:
                del self._pieces[sender]
            if not turn.done():  # its client may have disconnected
                turn.set_result(None)
                self._left_bytes -= size_bytes + PIECE_COST_BYTES
        self._is_round_open = True
        polls = POLLS_PER_ROUND if is_shared else 1
        asyncio.get_running_loop().call_soon(self._end_round, polls)  # after the started pieces

    def _has_room(self, size_bytes: int) -> bool:
        """Whether one more piece is done in this round."""
        fits = size_bytes <= max(LARGE_PIECE_BYTES, self._left_bytes)
        return self._left_bytes > 0 and (fits or self._round_bytes - self._left_bytes <= ROUND_BYTES)

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
        Admit a request, which is in flight within the context; waits while its sender has too many.

        Raises:
            LaneSaturatedError: too many bytes wait, or half of the time limit is over; nothing was begun.
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
        """Return once `_leave` has admitted the request."""
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
        """End a request, and admit waiting ones within the limit."""
        requests = self._senders[sender]
        requests.held_bytes -= size_bytes
        while requests.waiting:
            size_bytes, let_in = requests.waiting[0]
            if not let_in.done():  # its client may have disconnected
                if self.is_shared and not requests.has_capacity(size_bytes):
                    return
                requests.held_bytes += size_bytes
                let_in.set_result(None)
            requests.waiting.popleft()
        if requests.held_bytes == 0:
            del self._senders[sender]
