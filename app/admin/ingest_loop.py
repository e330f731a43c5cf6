"""Access of the admin port's thread to the ingest's event loop: its heartbeat, and calls that run in it."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from dedupe.model.errors import RetriableError

HEARTBEAT_S = 0.25

ALIVE_S = 15.0
"""
An event loop without a turn for longer hangs. Shorter pauses are normal, after a suspension of the machine or
while a disk stalls a write of the index.
"""

READ_TIMEOUT_S = 5.0
RUN_TIMEOUT_S = 30.0

T = TypeVar("T")


class LoopCollector(ScrapedCollector):
    """Collects the lag of the heartbeat."""

    def __init__(self, ingest_loop: "IngestLoop") -> None:
        self._ingest_loop = ingest_loop

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gateway_event_loop_lag_seconds",
            "Delay of the ingest's event loop at its last heartbeat, of four a second",
            self._ingest_loop.lag_s,
        )


class IngestLoop:
    """Created in the ingest's event loop, and used from another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._beaten_at = time.monotonic()
        self.lag_s = 0.0
        """The delay of the last heartbeat."""

    @property
    def silence_s(self) -> float:
        """Seconds since the loop had its last turn."""
        return time.monotonic() - self._beaten_at

    async def heartbeat(self) -> None:
        """Note the time of the loop's last turn, until cancelled."""
        while True:
            self._beaten_at = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)
            self.lag_s = max(0.0, self.silence_s - HEARTBEAT_S)

    def call(self, function: Callable[[], object]) -> None:
        """Schedule a short function in that loop, without waiting; callable while being cancelled."""
        self._loop.call_soon_threadsafe(function)

    async def read(self, function: Callable[[], T]) -> T:
        """
        Run a short function in that loop, and return its result.

        Lanes, indexes and collectors belong to that loop's thread, and have no locks.

        Raises:
            RetriableError: the loop is too busy to run it.
        """

        async def run() -> T:
            return function()

        return await self.run(run, limit_s=READ_TIMEOUT_S)

    async def run(
        self, function: Callable[[], Coroutine[Any, Any, T]], *, limit_s: float = RUN_TIMEOUT_S
    ) -> T:
        """
        Run a coroutine in that loop for at most `limit_s` seconds, and return its result.

        Raises:
            RetriableError: it did not end in time, and is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(function(), self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except TimeoutError as err:
            raise RetriableError("the ingest's event loop is busy") from err
