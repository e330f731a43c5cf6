"""How long the pieces of some work hold the event loop, between two of its turns."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any, TypeAlias

Turn: TypeAlias = Callable[[int], Awaitable[None]]

RETRIES = 4
"""What else the machine does makes a piece of work look long, but not the same one each time."""


def pieces_of(work: Callable[[Turn], Coroutine[Any, Any, object]]) -> list[float]:
    """Return what each piece takes of work that awaits what it is given between them, in seconds of CPU."""
    turns: list[float] = []

    async def turn(_size_bytes: int) -> None:
        turns.append(time.thread_time())

    async def run() -> None:
        gc.disable()  # it would look at the whole of the test process
        await turn(0)
        await work(turn)
        await turn(0)
        gc.enable()

    asyncio.run(run())
    return [after - before for before, after in pairwise(turns)]


def least_pieces_of(work: Callable[[Turn], Coroutine[Any, Any, object]], bound_s: float) -> list[float]:
    """Return the least of each piece, over some attempts while one of them reaches the bound."""
    pieces = pieces_of(work)
    for _ in range(RETRIES):
        if max(pieces) >= bound_s:
            pieces = [min(both) for both in zip(pieces, pieces_of(work), strict=True)]
    return pieces
