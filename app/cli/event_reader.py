"""
Reads the clean topic for `gateway events`: committed records as JSON lines, in order within a partition.

It needs no fence, lock or index.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import orjson
import structlog

from app.cli.console import note_no_log
from app.settings.log import LogSettings
from app.stores import open_for_reading
from dedupe.model.errors import LogCorruptError, RetriableError
from dedupe.model.record import RecordIdentity, parse_identity
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.log import LogStore

FOLLOW_POLL_S = 0.25
"""The interval of polls of all partitions' ends."""

Write = Callable[[bytes], None]

logger = structlog.get_logger(__name__)


class Span(NamedTuple):
    """The range and the filter of events."""

    is_from_start: bool
    is_followed: bool
    since_ms: int = 0
    """Events before this log time are not read."""
    source: str | None = None
    limit: int | None = None
    """The maximum number of events."""

    def includes(self, identity: RecordIdentity) -> bool:
        """Whether an event is of the wanted source."""
        return self.source in (None, identity.source)


async def print_events(settings: LogSettings, span: Span, write: Write) -> None:
    """
    Write the clean topic's committed records as JSON lines.

    A log that does not exist yet is read as an empty one, with a note on stderr.
    """
    is_noted = False
    while True:
        async with open_for_reading(settings) as store:
            if store is not None:
                await read_events(store, settings.topic, span, write)
            elif not is_noted:
                note_no_log(settings.data_dir)
                is_noted = True
            if store is not None or not span.is_followed:
                return
        span = span._replace(is_from_start=True)
        await asyncio.sleep(FOLLOW_POLL_S)


async def read_events(store: LogStore, topic: str, span: Span, write: Write) -> None:
    """
    Write the committed records of a topic, one JSON line each; foreign records are skipped.

    Args:
        store: the log; a topic that does not exist is read as an empty one.
        topic: the clean topic.
        span: the range and the filter.
        write: called with one or more whole lines.

    Raises:
        RetriableError: the log cannot be read; when following, the read is repeated instead.
    """
    positions: dict[int, Offset] = {}
    begins_at_end = not span.is_from_start
    printer = Printer(span, write)
    while True:
        try:
            for partition in range(await store.partitions_of(topic)):
                partition_log = store.partition_log(topic, partition)
                start, end = await partition_log.bounds()
                if partition not in positions:
                    since = await partition_log.offset_at(span.since_ms) if span.since_ms else start
                    positions[partition] = end if begins_at_end else max(start, since)
                async with aclosing(partition_log.read(positions[partition], end)) as batches:
                    async for records in batches:
                        printer.take(records, partition)
                        positions[partition] = records[-1].offset + 1
                        if printer.is_done:
                            return
            begins_at_end = False  # later partitions are new
        except RetriableError:
            if not span.is_followed:
                raise
        if not span.is_followed:
            return
        await asyncio.sleep(FOLLOW_POLL_S)


class Printer:
    """Writes the wanted records up to a limit."""

    def __init__(self, span: Span, write: Write) -> None:
        self._span, self._write = span, write
        self._left = span.limit

    @property
    def is_done(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def take(self, records: Sequence[LogRecord], partition: int) -> None:
        """Write the matching records of a partition's next ones."""
        lines = [line for record in records if (line := _line(record, partition, self._span))]
        if self._left is not None:
            lines = lines[: self._left]
            self._left -= len(lines)
        self._write(b"".join(lines))


def _line(record: LogRecord, partition: int, span: Span) -> bytes:
    """Return a record as a line; empty if it does not match, or is foreign."""
    try:
        identity = parse_identity(record)
    except LogCorruptError as err:
        logger.warning("record skipped", partition=partition, reason=str(err))
        return b""
    if record.timestamp_ms < span.since_ms or not span.includes(identity):
        return b""
    return orjson.dumps(
        {
            "messageId": identity.message_id,
            "source": identity.source,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "value": orjson.Fragment(record.value),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
