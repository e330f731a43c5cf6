"""
InheritingLog: the log of a partition that was given slots, behind the pieces of logs that have had them.

It reads all of them as one log, by the offsets of dedupe.model.inherited, and writes to its own alone.
Records of other slots are in it, too: dedupe.partition.record_reader leaves them out. A piece is read up to
its end, whatever end its leader shows: nothing below a cut changes any more.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from dedupe.decide.lineage import Lineage
from dedupe.decide.recovery import PlainRecords
from dedupe.model.errors import RetriableError
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
        self._own_base = lineage.own_base
        self._lineage = lineage
        self._logs: dict[int, PartitionLog] = {lineage.partition: own}
        for level in lineage.levels:
            if level.partition not in self._logs:
                self._logs[level.partition] = log_of(level.partition)

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
        return self._own_base + await self._own.fence()

    async def has_same_topic(self) -> bool:
        return await self._own.has_same_topic()

    async def bounds(self) -> tuple[Offset, Offset]:
        """
        See PartitionLog. It starts in the first piece that is not all deleted, unless own records are.

        Markers are deleted, too: those of before it was given slots say nothing.
        """
        lineage = self._lineage
        deleted, end = await self._own.bounds()
        if deleted <= max(lineage.own_from, lineage.empty_until):
            for base, level in zip(lineage.bases, lineage.levels, strict=True):
                first, _ = await self._logs[level.partition].bounds()
                if first < level.end:
                    return base + max(first, level.start), self._own_base + end
        return self._own_base + max(deleted, lineage.own_from), self._own_base + end

    async def offset_at(self, timestamp_ms: int) -> Offset:
        """See PartitionLog; by the times that records count as here."""
        lineage = self._lineage
        for base, level in zip(lineage.bases, lineage.levels, strict=True):
            if level.timestamp_min_ms >= timestamp_ms:
                return base + level.start
            offset = await self._logs[level.partition].offset_at(timestamp_ms)
            if offset < level.end:
                return base + max(offset, level.start)
        if lineage.timestamp_ms >= timestamp_ms:
            return lineage.own_start
        return self._own_base + max(await self._own.offset_at(timestamp_ms), lineage.own_from)

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        """See PartitionLog. Of a piece that is read from its beginning, old records may be left out."""
        left, lineage = records_max, self._lineage
        for low, high in lineage.ranges(start, end):
            partition, first = place_of(lineage.partition, low)
            begin = low - first
            if low > start and lineage.level_at(low) is not None:
                first = max(first, await self._logs[partition].offset_at(lineage.read_from_ms))
                if first >= high - begin:
                    continue
            reading = self._logs[partition].read(first, high - begin, records_max=left)
            async with aclosing(reading) as batches:
                async for records in batches:
                    yield _moved(records, begin)
                    left = None if left is None else left - len(records)
            if left is not None and left <= 0:
                return

    async def record_at(self, offset: Offset) -> LogRecord | None:
        partition, there = place_of(self._lineage.partition, offset)
        log = self._logs[partition]
        record = await log.record_at(there)
        if record is None and there < (await log.bounds())[0]:
            raise RetriableError(f"offset {there} of partition {partition} is deleted")
        return record and record._replace(offset=offset)

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        return self._own_base + await self._own.append(records)

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
