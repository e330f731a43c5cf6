"""The ingest's event loop as the admin port's thread sees it: its heartbeat, and reads that run in it."""

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
An event loop without a turn for so long hangs. Shorter ones happen to healthy processes: a machine
that was suspended, a disk that stalls a write of the index.
"""

READ_TIMEOUT_S = 5.0
RUN_TIMEOUT_S = 30.0

T = TypeVar("T")


class LoopCollector(ScrapedCollector):
    """Shows the heartbeat as a metric."""

    def __init__(self, ingest_loop: "IngestLoop") -> None:
        self._ingest_loop = ingest_loop

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gateway_event_loop_lag_seconds",
            "How late the ingest's event loop was at its last heartbeat, of four a second",
            self._ingest_loop.lag_s,
        )


class IngestLoop:
    """Made in the ingest's event loop, and used from another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._beaten_at = time.monotonic()
        self.lag_s = 0.0
        """How late the loop's last turn was that came by the clock."""

    @property
    def silence_s(self) -> float:
        """Seconds since the loop had its last turn."""
        return time.monotonic() - self._beaten_at

    async def heartbeat(self) -> None:
        """Note in the loop, for ever, when it turned last."""
        while True:
            self._beaten_at = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)
            self.lag_s = max(0.0, self.silence_s - HEARTBEAT_S)

    def call(self, function: Callable[[], object]) -> None:
        """Have a short function run in that loop, and wait for nothing: callable while being cancelled."""
        self._loop.call_soon_threadsafe(function)

    async def read(self, function: Callable[[], T]) -> T:
        """
        Return what a short function returns that runs between two turns of the loop.

        Lanes, indexes and registers belong to that loop's thread and know no locks.

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
        Return what a coroutine returns that runs in that loop, for at most so many seconds.

        Raises:
            RetriableError: it has not ended; it is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(function(), self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except TimeoutError as err:
            raise RetriableError("the ingest's event loop is busy") from err
