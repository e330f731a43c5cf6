"""
Reads the clean stream for `gateway events`: committed records as JSON lines.

It takes part in nothing: no fence, no lock, no index. Order holds within a partition only.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import orjson
import structlog

from app.config import LogSettings
from app.stores import open_for_reading
from dedupe.errors import LogCorruptError, RetriableError
from dedupe.log import LogStore
from dedupe.record import parse_identity
from dedupe.types import LogRecord, Offset

FOLLOW_POLL_S = 0.25
"""How late a followed event may be; each poll asks every partition for its end."""

Write = Callable[[bytes], None]

log = structlog.get_logger(__name__)


class Span(NamedTuple):
    """Where to read, and whether to go on."""

    is_from_start: bool
    is_followed: bool


async def print_events(settings: LogSettings, span: Span, write: Write) -> None:
    """
    Write the clean stream's committed records as JSON lines.

    A log that does not exist yet is an empty one.
    """
    while True:
        async with open_for_reading(settings) as store:
            if store is not None:
                await read_events(store, settings.topic, span, write)
            if store is not None or not span.is_followed:
                return
        span = span._replace(is_from_start=True)
        await asyncio.sleep(FOLLOW_POLL_S)


async def read_events(store: LogStore, topic: str, span: Span, write: Write) -> None:
    """
    Write the committed records of a topic, one JSON line each; those of somebody else are left out.

    Args:
        store: the log; a topic that does not exist (yet) is an empty one.
        topic: the clean stream's.
        span: from the start or from now on; to the end or for ever.
        write: takes one or more whole lines.

    Raises:
        RetriableError: the log cannot be read; when following, it is tried again instead.
    """
    positions: dict[int, Offset] = {}
    begins_at_end = not span.is_from_start
    while True:
        try:
            for partition in range(await store.partitions_of(topic)):
                partition_log = store.partition_log(topic, partition)
                start, end = await partition_log.bounds()
                positions.setdefault(partition, end if begins_at_end else start)
                async with aclosing(partition_log.read(positions[partition], end)) as batches:
                    async for records in batches:
                        write(_lines(records, partition))
                        positions[partition] = records[-1].offset + 1
            begins_at_end = False  # a partition that appears from now on is new
        except RetriableError:
            if not span.is_followed:
                raise
        if not span.is_followed:
            return
        await asyncio.sleep(FOLLOW_POLL_S)


def _lines(records: Sequence[LogRecord], partition: int) -> bytes:
    return b"".join(_line(record, partition) for record in records)


def _line(record: LogRecord, partition: int) -> bytes:
    try:
        found = parse_identity(record)
    except LogCorruptError as err:
        log.warning("record left out", partition=partition, reason=str(err))
        return b""
    return orjson.dumps(
        {
            "messageId": found.message_id,
            "source": found.source,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "value": orjson.Fragment(record.value),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
