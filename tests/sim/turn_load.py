"""Clients of a simulated group, who begin requests at a steady pace, however long the answers take."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

from dedupe.model.slots import PartitionMap
from tests.sim.turn_world import TurnWorld

EVERY_S = 0.001
COPIES = 0.2
"""The share of requests whose id was sent before, and may be under way."""


class Asked(NamedTuple):
    """A request of one event."""

    name: str
    began: float
    ended: float
    is_answered: bool  # with success

    @property
    def took_s(self) -> float:
        return self.ended - self.began


class Turned(NamedTuple):
    """What clients saw of one plan."""

    began: float  # when the first worker left off
    ended: float  # when all served
    staying_s: list[
        float
    ]  # how long requests took that were under way or began then, by what became of their ids
    moved_s: list[float]

    def told(self, group: TurnWorld) -> str:
        """Say what took how long, for a test that fails."""
        steps = (f"{step.at - self.began:.3f} {step.worker} {step.name}" for step in group.steps)
        return f"{self.ended - self.began:.3f} s: {', '.join(steps)}"


class Load:
    """All requests of some clients."""

    def __init__(self, group: TurnWorld, rng: Random) -> None:
        """Send nothing before `running`."""
        self.asked: list[Asked] = []
        self._group, self._rng = group, rng
        self._names: list[str] = []

    @asynccontextmanager
    async def running(self, *, every_s: float = EVERY_S) -> AsyncIterator[None]:
        """Begin requests meanwhile, then wait for the last answers."""
        asking: set[asyncio.Task[None]] = set()

        async def begin() -> None:
            while True:
                asking.add(asyncio.ensure_future(self._ask()))
                await asyncio.sleep(every_s)

        beginning = asyncio.ensure_future(begin())
        try:
            yield
        finally:
            beginning.cancel()
            await asyncio.wait({beginning})
            for end in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end

    async def _ask(self) -> None:
        if self._names and self._rng.random() < COPIES:
            name = self._rng.choice(self._names)
        else:
            name = f"{len(self._names)}"
            self._names.append(name)
        able = [worker for worker in self._group.workers.values() if worker.is_alive and worker.is_open]
        loop = asyncio.get_running_loop()
        began = loop.time()
        is_answered = bool(able) and await self._rng.choice(able).send([self._group.world.event(name)])
        self.asked.append(Asked(name, began, loop.time(), is_answered))

    def refused(self) -> list[Asked]:
        """Return requests that were answered by anything but success."""
        return [asked for asked in self.asked if not asked.is_answered]

    def during(self, began: float, ended: float, before: PartitionMap, after: PartitionMap) -> Turned:
        """Return what clients saw of a turn; call it once `running` is over."""
        turned = Turned(began, ended, [], [])
        for asked in self.asked:
            if asked.ended >= began and asked.began <= ended:
                key = self._group.world.event(asked.name).key
                times = turned.staying_s if before.of(key) == after.of(key) else turned.moved_s
                times.append(asked.took_s)
        return turned


def p99(times_s: Iterable[float]) -> float:
    """Return the time that one in a hundred exceeds."""
    ordered = sorted(times_s)
    return ordered[math.ceil(0.99 * len(ordered)) - 1]
