"""
Reads quarantined events and their reasons, for `gateway quarantine` and for replays.

It needs no fence, lock or index.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

import orjson
import structlog

from dedupe.model.errors import LogCorruptError
from dedupe.model.record import HEADER_REASON, parse_identity
from dedupe.model.types import EventKey, LogRecord, Offset
from dedupe.storage.log import LogStore, PartitionLog

_CONTENT = re.compile(rb',"(event|head)":')
"""The beginning of the last field of a record's value; nothing before it can match."""

logger = structlog.get_logger(__name__)


class Place(NamedTuple):
    """The partition and offset of a record."""

    partition: int
    offset: Offset

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Parse `PARTITION:OFFSET`. Raises ValueError."""
        if not (match := re.fullmatch(r"(\d{1,9}):(\d{1,18})", text, re.ASCII)):
            raise ValueError(f"{text!r} is not a place such as 0:17 (partition and offset)")
        return cls(int(match[1]), int(match[2]))


class Wanted(NamedTuple):
    """The records to read: those that match every given field."""

    places: frozenset[Place] = frozenset()
    reason: str | None = None
    source: str | None = None
    since_ms: int = 0

    def includes(self, kept: "Kept") -> bool:
        """Whether a record matches; its place is not checked."""
        return (
            kept.timestamp_ms >= self.since_ms
            and self.reason in (None, kept.reason)
            and self.source in (None, kept.source)
        )


class Kept(NamedTuple):
    """One record of the quarantine stream."""

    place: Place
    timestamp_ms: int
    reason: str
    source: str
    message_id: str | None  # None without a valid one
    key: EventKey
    envelope: dict[str, Any]  # truncated, length, sha256
    content: bytes
    """The event's JSON bytes as received, or a JSON string of its first bytes if truncated."""

    @property
    def is_truncated(self) -> bool:
        """Whether only the first bytes of the event were stored."""
        return bool(self.envelope["truncated"])

    def line(self, *, has_content: bool) -> bytes:
        """Return the record as one JSON line, with or without the event."""
        fields: dict[str, Any] = {
            "partition": self.place.partition,
            "offset": self.place.offset,
            "timestamp": self.timestamp_ms,
            "reason": self.reason,
            "source": self.source,
            "messageId": self.message_id,
            "truncated": self.is_truncated,
            "length": self.envelope["length"],
        }
        if has_content:
            fields["sha256"] = self.envelope["sha256"]
            fields["head" if self.is_truncated else "event"] = orjson.Fragment(self.content)
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


async def read_quarantine(store: LogStore, topic: str, wanted: Wanted) -> AsyncGenerator[Kept, None]:
    """
    Yield the matching records up to the current end, in order within a partition.

    Records that no gateway wrote are skipped, with a warning.

    Args:
        store: the log; a topic that does not exist is read as an empty one.
        topic: the quarantine topic.
        wanted: the records; if places are given, only those are read.

    Raises:
        RetriableError: the log cannot be read.
    """
    for partition in range(await store.partitions_of(topic)):
        partition_log = store.partition_log(topic, partition)
        for start, end in await _ranges(partition_log, partition, wanted.places):
            async with aclosing(partition_log.read(start, end)) as batches:
                async for records in batches:
                    for record in records:
                        kept = _parse(record, partition)
                        if kept is not None and wanted.includes(kept):
                            yield kept


async def _ranges(log: PartitionLog, partition: int, places: frozenset[Place]) -> list[tuple[Offset, Offset]]:
    offsets = sorted(place.offset for place in places if place.partition == partition)
    if places and not offsets:
        return []
    start, end = await log.bounds()
    if not places:
        return [(start, end)]
    return [(offset, offset + 1) for offset in offsets if start <= offset < end]


def _parse(record: LogRecord, partition: int) -> Kept | None:
    """Decode a record without parsing its event, which may be nested too deeply for the parser."""
    try:
        identity = parse_identity(record)
    except LogCorruptError as err:
        logger.warning("record skipped", partition=partition, reason=str(err))
        return None
    reason = dict(record.headers).get(HEADER_REASON, b"").decode(errors="replace")
    begin = _CONTENT.search(record.value)
    if begin is None:
        raise LogCorruptError(f"record at offset {record.offset} was not quarantined by a gateway")
    return Kept(
        place=Place(partition, record.offset),
        timestamp_ms=record.timestamp_ms,
        reason=reason,
        source=identity.source,
        message_id=record.key.decode() or None,
        key=identity.key,
        envelope=orjson.loads(record.value[: begin.start()] + b"}"),
        content=record.value[begin.end() : -1],
    )
