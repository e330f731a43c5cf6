"""
Whether an event was kept apart: a search of the quarantine's newest records, and no further than it may cost.

Its index cannot tell, since its keys are made of the content as well. So the records are read, newest first,
and the answer says how far back it went.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from dedupe.clock import Clock, Deadline
from dedupe.errors import LogCorruptError
from dedupe.log import LogStore, PartitionLog
from dedupe.record import HEADER_REASON, parse_identity
from dedupe.types import LogRecord, Offset, Stream

CHUNK_OFFSETS = 2_000
"""Read at once; a look at one of its records takes less than a microsecond unless it is the one."""

OFFSETS_MAX = 20_000
"""Of each partition. They may have 64 KiB each, but seldom do."""

SEARCH_S = 3.0
SEARCHES_AT_ONCE = 2
"""They run in the ingest's loop; others wait for their turn, and no longer than a look-up may take."""

FOUND_MAX = 20
"""Of one id: each other content of it is kept once."""


@dataclass(slots=True)
class Found:
    """What a search has come to."""

    places: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    oldest_ms: int | None = None
    is_complete: bool = True

    def document(self) -> dict[str, Any]:
        """Return it as a part of the lookup's answer."""
        return {
            "found": self.places,
            "searched_records": self.records,
            "searched_since_ms": self.oldest_ms,
            "searched_all": self.is_complete,
        }


class KeptApart:
    """Searches the quarantine topic; used in the ingest's loop."""

    def __init__(self, store: LogStore, stream: Stream, clock: Clock) -> None:
        """Take the log and the quarantine stream."""
        self._store = store
        self._stream = stream
        self._clock = clock
        self._turns = asyncio.Semaphore(SEARCHES_AT_ONCE)

    async def search(self, source: str, message_id: str) -> Found:
        """Return where events with this id of a source are kept. Raises RetriableError."""
        async with self._turns:
            found, deadline = Found(), Deadline(self._clock, SEARCH_S)
            for partition in range(self._stream.partitions):
                log = self._store.partition_log(self._stream.topic, partition)
                try:
                    await self._search_one(log, partition, source, message_id.encode(), found, deadline)
                finally:
                    await log.close()
            return found

    async def _search_one(
        self,
        log: PartitionLog,
        partition: int,
        source: str,
        key: bytes,
        found: Found,
        deadline: Deadline,
    ) -> None:
        start, end = await log.bounds()
        first = max(start, end - OFFSETS_MAX)
        while end > first and not deadline.is_over and len(found.places) < FOUND_MAX:
            begin = max(first, end - CHUNK_OFFSETS)
            await self._search_chunk(log, begin, end, partition, source, key, found)
            end = begin
        if end > start:
            found.is_complete = False

    async def _search_chunk(
        self,
        log: PartitionLog,
        start: Offset,
        end: Offset,
        partition: int,
        source: str,
        key: bytes,
        found: Found,
    ) -> None:
        async with aclosing(log.read(start, end)) as batches:
            async for records in batches:
                found.records += len(records)
                oldest_ms = records[0].timestamp_ms
                found.oldest_ms = oldest_ms if found.oldest_ms is None else min(found.oldest_ms, oldest_ms)
                for record in records:
                    if record.key == key and (told := self._told(record, partition, source)) is not None:
                        found.places.append(told)

    def _told(self, record: LogRecord, partition: int, source: str) -> dict[str, Any] | None:
        """Return what is told of a record with the right id; None if it is another source's, or nobody's."""
        try:
            identity = parse_identity(record)
        except LogCorruptError:
            return None
        if identity.source != source:
            return None
        return {
            "topic": self._stream.topic,
            "partition": partition,
            "offset": record.offset,
            "reason": dict(record.headers).get(HEADER_REASON, b"").decode(errors="replace"),
            "timestamp_ms": record.timestamp_ms,
            "age_seconds": (self._clock.now_ms() - record.timestamp_ms) / 1000,
            "bytes": len(record.value),
        }
