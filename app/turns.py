"""
Turns on the event loop: work on requests in pieces, shared fairly by those who send them.

Parsing and identifying hold the loop, so no more is done between two looks at the sockets than a few
milliseconds' worth, and whoever waits longest goes next, one piece for each sender in turn: beside a
sender with many connections another one waits for a piece of his, not for all of them.
"""

import asyncio
from collections import OrderedDict, deque

ROUND_BYTES = 64 * 1024
"""Work of one round of the loop; the piece that exceeds it is the round's last."""

PIECE_COST_BYTES = 2 * 1024
"""What a piece counts beside its bytes: a request as such costs as much as some kilobytes."""


class Turns:
    """The queue of those who want to work; used within one event loop."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._left = ROUND_BYTES
        self._is_round_open = False

    async def take(self, sender: str, size_bytes: int) -> None:
        """Wait for the sender's turn to work on so many bytes; work at once when it comes."""
        if not self._is_round_open:
            self._begin_round()
        if self._left > 0 and not self._waiting:
            self._left -= size_bytes + PIECE_COST_BYTES
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append((size_bytes, turn))
        await turn

    def _begin_round(self) -> None:
        self._left = ROUND_BYTES
        self._is_round_open = True
        asyncio.get_running_loop().call_soon(self._end_round)

    def _end_round(self) -> None:
        """Begin the next round with those who wait; what they do comes before its end."""
        self._is_round_open = False
        if not self._waiting:
            return
        left = ROUND_BYTES
        while self._waiting and left > 0:
            sender, turns = next(iter(self._waiting.items()))
            size_bytes, turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(sender)
            else:
                del self._waiting[sender]
            if not turn.done():  # a client may have left meanwhile
                turn.set_result(None)
                left -= size_bytes + PIECE_COST_BYTES
        self._begin_round()
        self._left = left
