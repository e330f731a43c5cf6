"""Warming: makes an open index fast in the background, for the lane that serves and for its standby."""

import asyncio
from contextlib import suppress

from dedupe.model.errors import GatewayError
from dedupe.storage.index import DedupeIndex

PART = 0.75
"""The part of the time that goes into one index while nothing else is done: 60 million keys need a minute."""
PAUSE_S = 0.001


class Warming:
    """Takes steps of milliseconds, one of all lanes in a turn of the event loop."""

    def __init__(self, turn: asyncio.Lock) -> None:
        """`turn` is held by whatever blocks the event loop for so long."""
        self._turn = turn
        self._task: asyncio.Task[None] | None = None

    def begin(self, index: DedupeIndex) -> None:
        """Go on until the index is as fast as it can be; again whenever it may have grown."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(index))

    def end(self) -> None:
        """Take no more steps: the index may be closed now."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, index: DedupeIndex) -> None:
        loop = asyncio.get_running_loop()
        with suppress(GatewayError):  # the next look-up tells what is wrong with the index
            while True:
                async with self._turn:
                    await asyncio.sleep(0)  # the last one, of whatever lane, was in an earlier turn
                    began = loop.time()
                    if not index.warm():
                        return
                    step_s = loop.time() - began
                await asyncio.sleep(max(PAUSE_S, step_s * (1 / PART - 1)))
