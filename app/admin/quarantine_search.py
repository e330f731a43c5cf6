"""
The places of an event in quarantine.

With the event's content, the index has its place. A message id alone is not a key of the quarantine, so the
newest records are searched, within limits; the answer has the time back to which they were.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from app.admin.tail_sample import Sample
from dedupe.model.clock import Clock, Deadline
from dedupe.model.errors import LogCorruptError, RetriableError
from dedupe.model.identity import FINGERPRINT_BYTES, Identity
from dedupe.model.record import HEADER_REASON, parse_identity
from dedupe.model.routing import partition_of
from dedupe.model.types import LogRecord, Topic
from dedupe.router import Router
from dedupe.storage.log import LogStore
from dedupe.storage.quarantine_reader import Place

CHUNK_OFFSETS = 2_000
"""Offsets of one read."""

OFFSETS_MAX = 20_000
"""The limit of each partition."""

SEARCH_S = 3.0
SEARCHES_AT_ONCE = 2
"""They run in the ingest's loop; other searches wait."""

FOUND_MAX = 20
"""The limit of places: each content of an id is quarantined once."""


@dataclass(slots=True)
class Found:
    """The result of a search so far."""

    places: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    oldest_ms: int | None = None
    is_complete: bool = True

    def document(self) -> dict[str, Any]:
        """Return the result for the answer of a look-up."""
        return {
            "found": self.places,
            "searched_records": self.records,
            "searched_since_ms": self.oldest_ms,
            "searched_all": self.is_complete,
        }


class QuarantineSearch:
    """Searches the quarantine topic by message id; used in the ingest's loop."""

    def __init__(self, store: LogStore, topic: Topic, clock: Clock) -> None:
        self._store = store
        self._stream = topic
        self._clock = clock
        self._slots = asyncio.Semaphore(SEARCHES_AT_ONCE)

    async def search(self, source: str, message_id: str) -> Found:
        """Return the places of events with this id of a source. Raises RetriableError."""
        async with self._slots:
            found, deadline, key = Found(), Deadline(self._clock, SEARCH_S), message_id.encode()
            for partition in range(self._stream.partitions):
                async with aclosing(self._newest(partition, found, deadline)) as batches:
                    async for records in batches:
                        for record in records:
                            if record.key == key and (place := self._described(record, partition, source)):
                                found.places.append(place)
            return found

    async def _newest(
        self, partition: int, found: Found, deadline: Deadline
    ) -> AsyncGenerator[Sequence[LogRecord]]:
        """Yield the newest records in chunks, within the limits, and update `found`."""
        log = self._store.partition_log(self._stream.name, partition)
        try:
            start, end = await log.bounds()
            first = max(start, end - OFFSETS_MAX)
            while end > first and not deadline.is_over and len(found.places) < FOUND_MAX:
                begin, oldest_ms = max(first, end - CHUNK_OFFSETS), found.oldest_ms
                async with aclosing(log.read(begin, end)) as batches:
                    async for records in batches:
                        found.records += len(records)
                        oldest_ms = min(oldest_ms or records[0].timestamp_ms, records[0].timestamp_ms)
                        yield records
                        if deadline.is_over:  # records may be large
                            found.is_complete = False
                            return
                found.oldest_ms, end = oldest_ms, begin
            found.is_complete &= end <= start
        finally:
            await log.close()

    def _described(self, record: LogRecord, partition: int, source: str) -> dict[str, Any] | None:
        """Return a record as a document; None if it is of another source, or no gateway wrote it."""
        try:
            identity = parse_identity(record)
        except LogCorruptError:
            return None
        if identity.source != source:
            return None
        return {
            "topic": self._stream.name,
            "partition": partition,
            "offset": record.offset,
            "reason": dict(record.headers).get(HEADER_REASON, b"").decode(errors="replace"),
            "timestamp_ms": record.timestamp_ms,
            "age_seconds": (self._clock.now_ms() - record.timestamp_ms) / 1000,
            "bytes": len(record.value),
        }


async def locate(router: Router, identity: Identity, sample: Sample) -> Place | None:
    """Return the place of a rejected or conflicting event, None if it is unknown."""
    key = sample.key[:-FINGERPRINT_BYTES]
    if not sample.is_wrapped:  # a conflict, whose key in quarantine is another one
        key = identity.quarantine_key(
            sample.source or "", sample.message_id or "", sample.key[-FINGERPRINT_BYTES:]
        )
    routes = router.quarantine_routes
    partition = partition_of(key, len(routes))
    try:
        entry = await routes[partition].find(key)
    except RetriableError:
        return None
    return None if entry is None else Place(partition, entry.offset)
