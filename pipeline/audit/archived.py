"""
Whether the columns of an archive follow from its values, over Arrow batches: what `archived` computes.

A column that is written in a way that Spark may read differently counts as one that does not follow:
pipeline/audit/columns.py then computes it in SQL, and names what differs.
"""

import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from pipeline.schema import LATER_COLUMNS, LOG_EPOCH
from pipeline.sources.records import Offsets

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
NO_TIME = -1

_TEXTS = {
    "type": "type",
    "event": "event",
    "user_id": "userId",
    "anonymous_id": "anonymousId",
    "previous_id": "previousId",
    "group_id": "groupId",
    "name": "name",
    "category": "category",
    "properties": "properties",
    "traits": "traits",
    "context": "context",
}
"""Columns, each with its field of an event."""

_ORIGINALS = ("message_id_bytes", "value_bytes")
_FOLDERS = {"dt": "%Y-%m-%d", "hr": "%H"}
_TIMES = ("event_time", "day")
_PLAIN_TIME = re.compile(
    r"(?:19[7-9]\d|[2-8]\d{3})-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-](?:0\d|1[0-4]):[0-5]\d)"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredColumns:
    """The columns of schema.ARCHIVE that a batch has beside its records."""

    def __init__(self, batch: pa.RecordBatch, later_from: Offsets | None) -> None:
        """
        Take a batch.

        Args:
            batch: schema.RECORD, and columns of schema.ARCHIVE.
            later_from: as of columns.read_with_changes.
        """
        self._batch = batch
        self._names = set(batch.schema.names)
        self._is_older = _older(batch, later_from)
        lacks_later = self._is_older.tolist()
        none_lacks = [False] * batch.num_rows
        self._texts = [
            (
                batch.column(name).to_pylist(),
                lacks_later if name in LATER_COLUMNS else none_lacks,
                field,
                f'"{field}":'.encode(),
            )
            for name, field in _TEXTS.items()
            if name in self._names
        ]
        self._has_times, self._has_sent_at = bool(self._names & {*_TIMES}), "sent_at" in self._names
        self._event_us = np.full(batch.num_rows, NO_TIME, np.int64)
        self._sent_us = np.full(batch.num_rows, NO_TIME, np.int64)

    def follow(self, row: int, document: Any, value: bytes, *, is_cloudevent: bool) -> bool:
        """Whether the texts of a row plainly follow from its value; remembers the client's time."""
        if not all(
            lacks[row] or _is_text(stored[row], document.get(field), told, value)
            for stored, lacks, field, told in self._texts
        ):
            return False
        if self._has_times:
            event_us = _event_time(document.get("time" if is_cloudevent else "timestamp"))
            if event_us is None:
                return False
            self._event_us[row] = event_us
        if self._has_sent_at and not self._is_older[row]:
            sent_us = _event_time(document.get("sentAt"))
            if sent_us is None:
                return False
            self._sent_us[row] = sent_us
        return True

    def others_follow(self, time_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """
        Whether the other columns of each row do.

        Args:
            time_us: log times, within clean_topic.EARLIEST and LATEST.
        """
        is_same = np.ones(len(time_us), np.bool_)
        if LOG_EPOCH in self._names:
            # Of an archive with several logs Spark reads each by itself.
            epochs = self._batch.column(LOG_EPOCH).cast(pa.int64()).fill_null(0)
            is_same &= epochs.to_numpy(zero_copy_only=False) == 0
        for name in self._names.intersection(_ORIGINALS):
            is_same &= self._batch.column(name).is_null().to_numpy(zero_copy_only=False)
        if "event_time" in self._names:
            is_same &= self._integers("event_time") == self._event_us
        if self._has_sent_at:
            is_same &= self._integers("sent_at") == self._sent_us
        if "day" in self._names:
            told_us = np.where(self._event_us == NO_TIME, time_us, self._event_us)
            is_same &= self._integers("day") == np.floor_divide(told_us, DAY_US)
        hours = np.floor_divide(time_us, HOUR_US)
        for name in self._names.intersection(_FOLDERS):
            texts = {hour: _written(hour, _FOLDERS[name]) for hour in np.unique(hours).tolist()}
            stored = zip(self._batch.column(name).to_pylist(), hours.tolist(), strict=True)
            is_same &= np.fromiter((text == texts[hour] for text, hour in stored), np.bool_, len(hours))
        return is_same

    def _integers(self, name: str) -> npt.NDArray[np.int64]:
        """Return a date in days or a time in microseconds since 1970; NO_TIME for null."""
        column = self._batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        else:
            column = column.cast(pa.int32())
        filled = column.cast(pa.int64()).fill_null(NO_TIME)
        numbers: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
        return numbers


def _older(batch: pa.RecordBatch, later_from: Offsets | None) -> npt.NDArray[np.bool_]:
    """Whether each row has none of schema.LATER_COLUMNS, and need not, since it was written before them."""
    is_older = np.full(batch.num_rows, later_from is None)
    if later_from:
        places = (batch.column(name).fill_null(0).to_numpy() for name in ("partition", "offset"))
        partition, offset = places
        for number, first in later_from.items():
            is_older |= (partition == number) & (offset < first)
    for name in LATER_COLUMNS:
        if name in batch.schema.names:
            is_older &= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return is_older


def _is_text(stored: str | None, field: Any, told: bytes, value: bytes) -> bool:
    """
    Whether a column has the text of a field: of a number or an object its JSON, exactly as the value has it.

    Args:
        stored: the column.
        field: as parsed.
        told: the name of the field in JSON, and a colon.
        value: that the field is of.
    """
    if type(field) is int:
        return stored == str(field)
    if type(field) not in (dict, list):
        return bool(stored == field)
    if stored is None:
        return False
    text = stored.encode()
    if told + text not in value:
        return False
    # If the name stands there once, what follows it is the whole of this document.
    document = orjson.loads(text)
    is_alone = value.count(told) == 1
    return type(document) is type(field) and (is_alone or bool(document == field))


def _event_time(text: Any) -> int | None:
    """Return a client's time, microseconds since 1970; NO_TIME for null, None if it is not plainly known."""
    if text is None:
        return NO_TIME
    if type(text) is not str or not _PLAIN_TIME.fullmatch(text):
        return None
    since = datetime.fromisoformat(text) - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return microseconds if microseconds >= 0 else None


def _written(hour: int, written: str) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).strftime(written)
