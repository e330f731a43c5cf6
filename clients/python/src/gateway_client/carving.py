"""
Events from the pages of a damaged file, without the tree that leads to them.

The format is https://www.sqlite.org/fileformat2.html: the table of events is an index tree, whose cells
are records. Whatever is no event fails its checksum.
"""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .queue_file import PAGE_BYTES

LEAF, INTERIOR = 0x0A, 0x02
HEAD_BYTES = {LEAF: 8, INTERIOR: 12}
CHILD_BYTES = {LEAF: 0, INTERIOR: 4}
LOCAL_MAX, LOCAL_MIN = (PAGE_BYTES - 12) * 64 // 255 - 23, (PAGE_BYTES - 12) * 32 // 255 - 23
"""How much of a record is in its cell."""

CHAIN_BYTES = PAGE_BYTES - 4
RECORD_BYTES_MAX = 1_000_000
INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8, 0, 0, 0)
"""By serial type; the last two are 0 and 1 themselves."""


def carved_events(file: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of all events in the pages of a file, of deleted ones, too."""
    for begin in range(0, len(file) - PAGE_BYTES + 1, PAGE_BYTES):
        kind = file[begin]
        if kind in HEAD_BYTES:
            cells = int.from_bytes(file[begin + 3 : begin + 5], "big")
            for number in range(min(cells, PAGE_BYTES // 2)):
                pointer = begin + HEAD_BYTES[kind] + 2 * number
                at = begin + int.from_bytes(file[pointer : pointer + 2], "big") + CHILD_BYTES[kind]
                with suppress(IndexError, ValueError):
                    yield _event_in(_record_at(file, at))


def _record_at(file: bytes, at: int) -> bytes:
    """Return the record of a cell, with the pages that it goes on in."""
    size, at = _varint(file, at)
    if size > RECORD_BYTES_MAX:
        raise ValueError
    local = size
    if size > LOCAL_MAX:
        local = LOCAL_MIN + (size - LOCAL_MIN) % CHAIN_BYTES
        local = local if local <= LOCAL_MAX else LOCAL_MIN
    record, link = bytearray(file[at : at + local]), at + local
    while len(record) < size:
        page = (int.from_bytes(file[link : link + 4], "big") - 1) * PAGE_BYTES
        if not 0 < page < len(file):
            raise ValueError
        record += file[page + 4 : page + PAGE_BYTES][: size - len(record)]
        link = page
    return bytes(record)


def _event_in(record: bytes) -> tuple[Any, ...]:
    """Return the columns of a record. Raises ValueError, IndexError if it is no event."""
    head, at = _varint(record, 0)
    body, row = head, list[Any]()
    while at < head:
        kind, at = _varint(record, at)
        if kind < len(INTEGER_BYTES):
            size = INTEGER_BYTES[kind]
            row.append(kind - 8 if kind >= 8 else int.from_bytes(record[body : body + size], "big"))
        else:
            size = (kind - 12) // 2
            row.append(record[body : body + size])
        body += size
    _session_id, _sequence, content, _has_id, _queued_at_ms, checksum = row
    if not isinstance(content, bytes) or zlib.crc32(content) != checksum:
        raise ValueError
    return tuple(row)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 9 bytes, and where it ends."""
    value = 0
    for _ in range(8):
        value = value << 7 | data[at] & 0x7F
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return value << 8 | data[at], at + 1
