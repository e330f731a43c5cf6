"""
The batches of one partition that wait for verdicts: several at once, so that reading waits for none.

The position moves behind a batch once it and all before it are decided. Two batches never have an event of
one id at once: a copy that overtakes the first, which may have to be submitted again, would be the original.

InputPartition.run -> **InFlight.begin** -> InputAdmission.decide
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from dedupe.model.types import EventKey, Offset

BATCHES_MAX = 4
"""Of one partition: behind a slow lane it reads no further than so many."""


@dataclass(slots=True)
class _Batch:
    end: Offset
    keys: frozenset[EventKey]
    deciding: "asyncio.Task[None]"


class InFlight:
    """Used by one reader of one partition."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.position: Offset | None = None
        """Behind the last record before which all events have verdicts; None until a start is known."""
        self._batches: deque[_Batch] = deque()  # in the order of the partition

    async def make_room(self) -> None:
        """Wait until one more batch may begin."""
        while len(self._batches) >= BATCHES_MAX:
            await asyncio.wait([self._batches[0].deciding])
            self.settle()

    async def when_apart(self, keys: frozenset[EventKey]) -> None:
        """Wait until no batch in flight has an event of these ids."""
        if meeting := [each.deciding for each in self._batches if not keys.isdisjoint(each.keys)]:
            await asyncio.wait(meeting)

    def begin(
        self, end: Offset, keys: frozenset[EventKey], deciding: Coroutine[Any, Any, None]
    ) -> "asyncio.Task[None]":
        """Have a batch decided, whose last record is the one before `end`."""
        task = asyncio.ensure_future(deciding)
        self._batches.append(_Batch(end, keys, task))
        return task

    def pass_markers(self, end: Offset) -> None:
        """Note that nothing is left to read before `end`."""
        if self._batches:
            self._batches[-1].end = end
        else:
            self.position = end

    def settle(self) -> None:
        """Move the position behind what is decided. Raises what a batch has failed with."""
        while self._batches and self._batches[0].deciding.done():
            self._settle_oldest()

    async def drain(self) -> None:
        """Wait until all is decided. Raises what a batch has failed with."""
        while self._batches:
            await asyncio.wait([self._batches[0].deciding])
            self.settle()

    async def end(self) -> None:
        """Leave what is not decided yet to the next reader; what is decided already still counts."""
        deciding = [each.deciding for each in self._batches]
        for each in deciding:
            each.cancel()
        if deciding:
            await asyncio.wait(deciding)
        while self._batches and _is_decided(self._batches[0].deciding):
            self._settle_oldest()
        self._batches.clear()

    def _settle_oldest(self) -> None:
        batch = self._batches.popleft()
        batch.deciding.result()
        self.position = batch.end


def _is_decided(deciding: "asyncio.Task[None]") -> bool:
    return not deciding.cancelled() and deciding.exception() is None
