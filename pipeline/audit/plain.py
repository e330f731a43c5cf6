"""
Which records are plainly as a gateway wrote them, over Arrow batches, with numpy and orjson.

The rules are those of pipeline/audit/rules.py and dedupe.model.record.parse_identity. A record that is not
plain need not be wrong: the checks in SQL judge and name it. So each doubt here makes it not plain, and the
client sessions' records, whose rules need other records, never are.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from isal.isal_zlib import crc32

from dedupe.model.cloudevent import cloudevent_id
from dedupe.model.quarantine import RAW
from dedupe.model.record import (
    CHECKSUM_BYTES,
    FLAG_CHECKSUM,
    FLAG_CLOUDEVENT,
    FLAG_ID_ASSIGNED,
    FLAG_NOT_IDEMPOTENT,
    FLAG_PIECE,
    VERSION,
)
from pipeline.audit.archived import StoredColumns
from pipeline.audit.rules import QUARANTINE_SUFFIX
from pipeline.schema import RECORD
from pipeline.sources.records import Offsets
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES
from pipeline.transforms.erased import ERASED

FULL_HEADER_BYTES = BASE_HEADER_BYTES + CHECKSUM_BYTES
LOG_TIME_END_US = 253_402_300_740_000_000
"""9999-12-31T23:59Z, as pipeline.transforms.clean_topic.LATEST."""

_PLAIN_FLAGS = FLAG_ID_ASSIGNED | FLAG_NOT_IDEMPOTENT | FLAG_PIECE | FLAG_CHECKSUM | FLAG_CLOUDEVENT
_FLAGS, _KEY, _LANE_SEQ = 1, slice(2, 10), slice(26, 34)
"""Bytes of `gw`: of the key its first 64 bits, which also give the partition."""

_NOT_PLAIN, _PROVED, _UNPROVED, _ERASED = range(4)

Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]


class Plain(NamedTuple):
    """What is known of each record of a batch; numbers of one that is not plain mean nothing."""

    partition: Numbers
    offset: Numbers
    time_us: Numbers  # log time
    lane_seq: Numbers
    key: npt.NDArray[np.uint64]  # the first 64 bits of the event key
    is_plain: Flags
    is_unproved: Flags
    is_erased: Flags


def plain_records(batch: pa.RecordBatch, partitions: int, later_from: Offsets | None = None) -> Plain:
    """
    Judge each record of a batch by itself.

    Args:
        batch: schema.RECORD, and columns of schema.ARCHIVE to compare with what `archive` computes.
        partitions: how many the topic has.
        later_from: as of columns.read_with_changes.
    """
    partition, partition_known = _numbers(batch, "partition")
    offset, offset_known = _numbers(batch, "offset")
    time_us, time_known = _numbers(batch, "timestamp")
    headers = batch.column("gw").to_pylist()
    matrix = _matrix(headers)
    flags = matrix[:, _FLAGS]
    key = matrix[:, _KEY].copy().view(">u8").ravel().astype(np.uint64)
    lane_seq = matrix[:, _LANE_SEQ].copy().view(">i8").ravel().astype(np.int64)
    is_plain = (
        partition_known
        & offset_known
        & time_known
        & (time_us >= 0)
        & (time_us < LOG_TIME_END_US)
        & (matrix[:, 0] == VERSION)
        & ((flags & (0xFF ^ _PLAIN_FLAGS)) == 0)
        & (lane_seq >= 0)
        & ((key % np.uint64(partitions)).astype(np.int64) == partition)
    )
    # Of other times the columns that follow from them are unknown.
    stored = StoredColumns(batch, later_from) if batch.num_columns > len(RECORD) else None
    states = _contents(batch, stored, headers, np.where(is_plain, time_us, 0), flags.tolist())
    is_plain &= states != _NOT_PLAIN
    return Plain(partition, offset, time_us, lane_seq, key, is_plain, states == _UNPROVED, states == _ERASED)


def _numbers(batch: pa.RecordBatch, name: str) -> tuple[Numbers, Flags]:
    """Return a column as integers, and where it is not null; a time is in microseconds since 1970."""
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), known


def _matrix(headers: list[bytes | None]) -> npt.NDArray[np.uint8]:
    """Return a row of FULL_HEADER_BYTES for each `gw`; zeros for one of another length."""
    zeros = bytes(FULL_HEADER_BYTES)
    rows = [
        gw
        if gw is not None and len(gw) == FULL_HEADER_BYTES
        else gw + zeros[:CHECKSUM_BYTES]
        if gw is not None and len(gw) == BASE_HEADER_BYTES
        else zeros
        for gw in headers
    ]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), FULL_HEADER_BYTES)


def _contents(
    batch: pa.RecordBatch,
    stored: StoredColumns | None,
    headers: list[Any],
    time_us: Numbers,
    flags: list[int],
) -> npt.NDArray[np.int8]:
    """Return a state for each record: whether its value and stored columns are those of its event."""
    states = np.full(batch.num_rows, _NOT_PLAIN, np.int8)
    topics = batch.column("topic").unique().to_pylist()
    if len(topics) != 1 or topics[0] is None:
        return states
    judge = _quarantined if topics[0].endswith(QUARANTINE_SUFFIX) else _event
    names = ("source", "key", "value")
    columns = (batch.column(name).cast(pa.binary()).to_pylist() for name in names)
    # No document is kept: ten thousand of them at once would keep Python's collector busy.
    for row, (source, key, value, gw, flag) in enumerate(zip(*columns, headers, flags, strict=True)):
        try:
            document = judge(key, value, flag)
            if document is None:
                continue
            source.decode()
            is_cloudevent = bool(flag & FLAG_CLOUDEVENT)
            if stored and not stored.follow(row, document, value, is_cloudevent=is_cloudevent):
                continue
            states[row] = _proof(document, source, key, gw, value, flag)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # null, no UTF-8, or no JSON object
    if stored is not None:
        states[~stored.others_follow(time_us)] = _NOT_PLAIN
    return states


def _proof(document: Any, source: bytes, key: bytes, gw: bytes, value: bytes, flags: int) -> int:
    if flags & FLAG_CHECKSUM:
        head, told = gw[:-CHECKSUM_BYTES], gw[-CHECKSUM_BYTES:]
        is_equal = crc32(value, crc32(source + key + head)) == int.from_bytes(told, "big")
        return _PROVED if is_equal and len(gw) == FULL_HEADER_BYTES else _NOT_PLAIN
    if len(gw) != BASE_HEADER_BYTES:
        return _NOT_PLAIN
    erased = document.get(ERASED)
    if erased is not None and type(erased) is not bool:
        return _NOT_PLAIN
    is_erased = document.get("reason") == ERASED if erased is None else erased
    return _ERASED if is_erased else _UNPROVED


def _event(key: bytes, value: bytes, flags: int) -> Any:
    """Return the document of a value of the clean topic if it is of its key's event; else None."""
    document = orjson.loads(value)
    if flags & FLAG_CLOUDEVENT:
        own_id = cloudevent_id(document["source"], document["id"])
    else:
        own_id = document["messageId"]
    return document if own_id == key.decode() else None


def _quarantined(key: bytes, value: bytes, flags: int) -> Any:
    """Return the document of a quarantined value, or the one before its raw bytes; else None."""
    key.decode()
    document = orjson.loads(value.partition(b"\n")[0] if value.startswith(RAW) else value)
    return document if type(document["reason"]) is str else None
