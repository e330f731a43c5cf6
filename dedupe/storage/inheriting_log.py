"""
InheritingLog: the log of a partition that was divided off another one, behind the logs of its ancestors.

It reads all of them as one log, by the offsets of dedupe.model.inherited, and writes to its own alone.
Records of ancestors for other slots are in it, too: dedupe.partition.record_reader leaves them out. An
ancestor is read up to its cut, whatever end its leader shows: nothing below the cut changes any more.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from dedupe.decide.layout import Lineage
from dedupe.decide.recovery import PlainRecords
from dedupe.model.inherited import place_of
from dedupe.model.types import LogRecord, NewRecord, Offset
from dedupe.storage.log import PartitionLog

LogOf: TypeAlias = Callable[[int], PartitionLog]


def inheriting(own: PartitionLog, lineage: Lineage | None, log_of: LogOf) -> PartitionLog:
    """Return the log of a lane; arguments as of InheritingLog."""
    return own if lineage is None else InheritingLog(own, lineage, log_of)


class InheritingLog:
    """See PartitionLog."""

    def __init__(self, own: PartitionLog, lineage: Lineage, log_of: LogOf) -> None:
        """Connect to nothing yet; `log_of` returns the log of another partition."""
        self._own = own
        self._own_start = lineage.own_start
        self._lineage = lineage
        self._logs: dict[int, PartitionLog] = {
            ancestor.partition: log_of(ancestor.partition) for ancestor in lineage.ancestors
        }
        self._logs[lineage.partition] = own

    @property
    def pause_after_append_s(self) -> float:
        return self._own.pause_after_append_s

    @property
    def throttled_s(self) -> float:
        return self._own.throttled_s

    @property
    def decisions(self) -> Sequence[LogRecord]:
        """What is decided beside its own partition, see DecidingLog."""
        return getattr(self._own, "decisions", ())

    @property
    def leader(self) -> str:
        return self._own.leader

    async def fence(self) -> Offset:
        return self._own_start + await self._own.fence()

    async def has_same_topic(self) -> bool:
        return await self._own.has_same_topic()

    async def bounds(self) -> tuple[Offset, Offset]:
        """See PartitionLog; the log starts where none behind it has deleted a record."""
        own_from, end = await self._own.bounds()
        start, lineage = self._own_start + own_from, self._lineage
        line = list(zip(lineage.starts, lineage.ancestors, strict=False))
        while start in lineage.starts and line:
            first, ancestor = line.pop()
            deleted, _ = await self._logs[ancestor.partition].bounds()
            start = first + min(deleted, ancestor.end)
        return start, self._own_start + end

    async def offset_at(self, timestamp_ms: int) -> Offset:
        for start, ancestor in zip(self._lineage.starts, self._lineage.ancestors, strict=False):
            offset = await self._logs[ancestor.partition].offset_at(timestamp_ms)
            if offset < ancestor.end:
                return start + offset
        return self._own_start + await self._own.offset_at(timestamp_ms)

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        left = records_max
        for low, high in self._lineage.ranges(start, end):
            partition, first = place_of(self._lineage.partition, low)
            begin = low - first
            reading = self._logs[partition].read(first, high - begin, records_max=left)
            async with aclosing(reading) as batches:
                async for records in batches:
                    yield _moved(records, begin)
                    left = None if left is None else left - len(records)
            if left is not None and left <= 0:
                return

    async def record_at(self, offset: Offset) -> LogRecord | None:
        partition, there = place_of(self._lineage.partition, offset)
        record = await self._logs[partition].record_at(there)
        return record and record._replace(offset=offset)

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        return self._own_start + await self._own.append(records)

    async def probe(self) -> None:
        await self._own.probe()

    async def close(self) -> None:
        for log in self._logs.values():
            await log.close()


def _moved(records: Sequence[LogRecord], start: Offset) -> Sequence[LogRecord]:
    """Return records with offsets that count from elsewhere."""
    if isinstance(records, PlainRecords):
        return records.moved(start)
    return [record._replace(offset=record.offset + start) for record in records]
