"""GrowingLog: what a partition will inherit by an open plan, as far as that is known; it is only read."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from dedupe.decide.lineage import distance
from dedupe.decide.planned import Heir
from dedupe.model.clock import Clock
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.inheriting_log import InheritingLog, LogOf
from dedupe.storage.log import PartitionLog


class Pace:
    """Limits how many records a process reads in a second, of all such logs together."""

    def __init__(self, records_per_s: int, clock: Clock) -> None:
        """Begin without a debt."""
        self._records_per_s = records_per_s
        self._clock = clock
        self._free_at = 0.0

    async def keep(self, records: int) -> None:
        """Wait until as many records as these may have been read."""
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now) + records / self._records_per_s
        await asyncio.sleep(self._free_at - now)


class GrowingLog(InheritingLog):
    """An InheritingLog that ends at the last mark, or where its last ancestor does now."""

    def __init__(self, own: PartitionLog, heir: Heir, log_of: LogOf, pace: Pace) -> None:
        """As InheritingLog."""
        super().__init__(own, heir.lineage, log_of)
        self._planned = heir.lineage
        self._marked_end = heir.end
        self._pace = pace
        self._end: Offset | None = None

    def lag(self, applied: Offset) -> int | None:
        """Return how many offsets are left to read behind one; None before the log was asked."""
        return None if self._end is None else distance(self._planned, applied, self._end)

    async def bounds(self) -> tuple[Offset, Offset]:
        start, _ = await super().bounds()
        self._end = self._marked_end
        if self._end is None:
            source = self._planned.levels[-1]
            _, end = await self._logs[source.partition].bounds()
            self._end = self._planned.bases[-1] + max(end, source.start)
        return min(start, self._end), self._end

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        async with aclosing(super().read(start, end, records_max=records_max)) as batches:
            async for records in batches:
                yield records
                await self._pace.keep(len(records))
