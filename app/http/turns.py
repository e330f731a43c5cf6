"""
Turns on the event loop: work on requests in pieces, shared fairly by those who send them.

Parsing and identifying hold the loop, so no more is done in one round than a few milliseconds' worth,
and each sender in turn has a piece: beside a sender with many connections another one waits for a
piece of his, not for all of them. A round takes several looks at the sockets, because that is how many
an answer takes on its way through lanes and log: it then waits for a round or two, not for one a look.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

ROUND_BYTES = 32 * 1024
"""Work of one round while several send; the piece that exceeds it is the round's last."""

LONE_ROUND_BYTES = 512 * 1024
"""Work of one round while only one sends, which makes for large commits: 20 ms at most."""

LOOKS = 16
"""How often the loop looks at its sockets in one round while several send and some of it has to wait."""

SHARED_S = 1.0
"""How long after a change of sender the loop is taken for shared."""

PIECE_COST_BYTES = 2 * 1024
"""What a piece counts beside its bytes: a request as such costs as much as some kilobytes."""

Turn: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until work on so many bytes may go on."""


class Turns:
    """The queue of those who want to work; used within one event loop."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._left = 0
        self._is_round_open = False
        self._sender: str | None = None
        self._shared_until = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether several have sent of late."""
        return asyncio.get_running_loop().time() < self._shared_until

    async def take(self, sender: str, size_bytes: int) -> None:
        """Wait for the sender's turn to work on so many bytes; work at once when it comes."""
        loop = asyncio.get_running_loop()
        if sender != self._sender:
            if self._sender is not None:
                self._shared_until = loop.time() + SHARED_S
            self._sender = sender
        if not self._is_round_open:
            self._begin_round()
        if self._left > 0 and not self._waiting:
            self._left -= size_bytes + PIECE_COST_BYTES
            return
        turn = loop.create_future()
        self._waiting.setdefault(sender, deque()).append((size_bytes, turn))
        await turn

    def _begin_round(self) -> None:
        """Hand the round's work to those who wait, one piece for each sender in turn."""
        is_shared = self.is_shared
        self._left = ROUND_BYTES if is_shared else LONE_ROUND_BYTES
        while self._waiting and self._left > 0:
            sender, turns = next(iter(self._waiting.items()))
            size_bytes, turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(sender)
            else:
                del self._waiting[sender]
            if not turn.done():  # a client may have left meanwhile
                turn.set_result(None)
                self._left -= size_bytes + PIECE_COST_BYTES
        self._is_round_open = True
        asyncio.get_running_loop().call_soon(
            self._end_round, LOOKS if is_shared else 1
        )  # after what was handed out

    def _end_round(self, looks_left: int) -> None:
        if looks_left > 1 and (self._waiting or self._left <= 0):
            asyncio.get_running_loop().call_soon(self._end_round, looks_left - 1)
        elif self._waiting:
            self._begin_round()
        else:
            self._is_round_open = False
