"""
Which events are of an erased person, and what is left of them, over Arrow batches. Pure.

An id of a person is listed as HMAC-SHA256 of its kind and text under a secret key, so the list names nobody.
An event is of a person whose id stands in one of ID_FIELDS; of a CloudEvent also in those of its `data`.

What is left of an event is its place in the log, its key, its type, and the mark by which an audit counts it.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedupe.model.record import CHECKSUM_BYTES, FLAG_CHECKSUM, FLAG_CLOUDEVENT
from pipeline.schema import LOG_EPOCH
from pipeline.transforms.table_rows import read_object, text_of
from pipeline.transforms.table_types import json_text

ERASED = "erased"
"""What stands in an erased event as a field that is true, and as the reason of a quarantined one."""


class IdKind(StrEnum):
    """What kind of id a person has."""

    USER = "user"
    ANONYMOUS = "anonymous"


ID_FIELDS: Mapping[str, tuple[IdKind, ...]] = {
    "userId": (IdKind.USER,),
    "anonymousId": (IdKind.ANONYMOUS,),
    "previousId": (IdKind.USER, IdKind.ANONYMOUS),
}

KEPT_COLUMNS = frozenset(
    {
        "topic",
        "partition",
        "offset",
        "timestamp",
        "message_id",
        "message_id_bytes",
        "source",
        "gs",
        LOG_EPOCH,
        "dt",
        "hr",
    }
)
"""Columns of an archive that an erasure leaves as they are; of the others value, gw, type and day are new."""

_DATA = "data"
_CLOUDEVENT_FIELDS = ("specversion", "id", "source")
_FLAGS = 1
_DAY_US, _LAST_US = 86_400_000_000, 253_402_300_740_000_000

SESSION_OWNERS = ("user", "visitor")
"""The columns of sessions that name somebody."""

Batches = Iterable[pa.RecordBatch]
Flags: TypeAlias = npt.NDArray[np.bool_]


class Persons(NamedTuple):
    """The listed persons."""

    key: bytes
    hashes: frozenset[str]

    def hash_of(self, kind: IdKind, text: str) -> str:
        """Return what the list has for an id."""
        return hmac.digest(self.key, f"{kind}:{text}".encode(errors="surrogatepass"), "sha256").hex()

    def has(self, kinds: Sequence[IdKind], value: object) -> bool:
        """Whether a value of an event is an id that is listed as one of these kinds."""
        text = text_of(value)
        return text is not None and any(self.hash_of(kind, text) in self.hashes for kind in kinds)

    def own(self, event: Mapping[str, Any]) -> bool:
        """Whether an event is of a listed person."""
        data = event.get(_DATA) if _CLOUDEVENT_FIELDS[0] in event else None
        documents = (event, data) if isinstance(data, dict) else (event,)
        return any(
            self.has(kinds, document[field])
            for document in documents
            for field, kinds in ID_FIELDS.items()
            if document.get(field) is not None
        )


Find = Callable[[Persons, pa.RecordBatch], Flags]
Change = Callable[[Persons, Batches], Iterator[pa.RecordBatch]]


def is_erased(event: Mapping[str, Any], gw: bytes | None) -> bool:
    """Whether this is what is left of an event; a client that says so itself gets a checksum."""
    return event.get(ERASED) is True and not _flags(gw) & FLAG_CHECKSUM


def erased_records(persons: Persons, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield all records of schema.RECORD, those of listed persons erased."""
    for batch in batches:
        found = _owned(persons, batch, "value")
        if not found:
            yield batch
            continue
        columns = {name: batch.column(name).to_pylist() for name in ("key", "value", "gw")}
        for row, event in found.items():
            columns["value"][row] = _left_of(event, columns["key"][row], columns["gw"][row])
            columns["gw"][row] = _without_checksum(columns["gw"][row])
        yield _replaced(batch, {name: columns[name] for name in ("value", "gw")})


def without_erased(persons: Persons, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the records of schema.RECORD that are neither erased nor of listed persons."""
    for batch in batches:
        events = zip(map(read_object, _bytes(batch, "value")), batch.column("gw").to_pylist(), strict=True)
        yield batch.filter(
            pa.array([not (is_erased(e, gw) or persons.own(e)) for e, gw in events], pa.bool_())
        )


def erased_rows(persons: Persons, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an archive (schema.ARCHIVE) that are of listed persons, as they are once erased."""
    for batch in batches:
        if found := _owned(persons, batch, "value", "value_bytes"):
            yield erased_archive(batch.take(pa.array(list(found), pa.int64())), list(found.values()))


def with_erased_rows(persons: Persons, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield all rows of an archive, those of listed persons erased."""
    for batch in batches:
        found = _owned(persons, batch, "value", "value_bytes")
        if found:
            others = pa.array([row not in found for row in range(batch.num_rows)])
            yield from erased_rows(persons, [batch])
            yield batch.filter(others)
        else:
            yield batch


def erased_archive(rows: pa.RecordBatch, events: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows of an archive as `archive` computes them of what is left of their events."""
    headers, keys = rows.column("gw").to_pylist(), _bytes(rows, "message_id", "message_id_bytes")
    left = [_left_of(e, key, gw) for e, key, gw in zip(events, keys, headers, strict=True)]
    micros = rows.column("timestamp").cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    days = np.clip(micros, 0, _LAST_US) // _DAY_US
    computed: dict[str, list[Any]] = {
        "value": [value.decode() for value in left],
        "gw": [_without_checksum(gw) for gw in headers],
        "type": [_type_of(event) for event in events],
        "day": days.astype("datetime64[D]").tolist(),
    }
    emptied: dict[str, list[Any]] = {
        name: [None] * rows.num_rows
        for name in rows.schema.names
        if name not in KEPT_COLUMNS | computed.keys()
    }
    return _replaced(rows, {**{n: v for n, v in computed.items() if n in rows.schema.names}, **emptied})


def in_table(persons: Persons, batch: pa.RecordBatch) -> Flags:
    """
    Whether each row of a table of the job `tables` is of a listed person.

    Args:
        batch: those of user_id, anonymous_id, previous_id and value that the table has, among others.
    """
    return np.fromiter(map(persons.own, _events_of_rows(batch)), np.bool_, batch.num_rows)


def in_archive(persons: Persons, batch: pa.RecordBatch) -> Flags:
    """Whether each row of an archive is."""
    is_listed = np.zeros(batch.num_rows, np.bool_)
    is_listed[list(_owned(persons, batch, "value", "value_bytes"))] = True
    return is_listed


def in_sessions(persons: Persons, batch: pa.RecordBatch) -> Flags:
    """Whether each row of sessions is; their user may be a visitor without a login."""
    is_listed = np.zeros(batch.num_rows, np.bool_)
    for name in SESSION_OWNERS:
        if name in batch.schema.names:
            texts = batch.column(name).to_pylist()
            is_listed |= np.array([persons.has(tuple(IdKind), text) for text in texts], np.bool_)
    return is_listed


def listed(find: Find, persons: Persons, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the rows that `find` finds."""
    for batch in batches:
        yield batch.filter(pa.array(find(persons, batch)))


def not_listed(find: Find, persons: Persons, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the other rows."""
    for batch in batches:
        yield batch.filter(pa.array(~find(persons, batch)))


def _owned(persons: Persons, batch: pa.RecordBatch, *value: str) -> dict[int, Mapping[str, Any]]:
    """Return the events of listed persons, by row."""
    events = enumerate(map(read_object, _bytes(batch, *value)))
    return {row: event for row, event in events if persons.own(event)}


def _events_of_rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    """Yield of each row of a table as much of its event as says whose it is."""
    named = {"user_id": "userId", "anonymous_id": "anonymousId", "previous_id": "previousId", "value": ""}
    there = [name for name in named if name in batch.schema.names]
    for texts in zip(*(batch.column(name).to_pylist() for name in there), strict=True):
        row = dict(zip((named[name] for name in there), texts, strict=True))
        value = row.pop("", None)
        yield row if value is None else read_object(value.encode(errors="replace"))


def _left_of(event: Mapping[str, Any], key: bytes, gw: bytes | None) -> bytes:
    """Return what is left of the value of a record."""
    if _flags(gw) & FLAG_CLOUDEVENT:
        left = {field: event[field] for field in _CLOUDEVENT_FIELDS if field in event}
    else:
        left = {"messageId": key.decode(errors="replace")}
    if (event_type := _type_of(event)) is not None:
        left["type"] = event_type
    return json_text({**left, ERASED: True}).encode()


def _type_of(event: Mapping[str, Any]) -> str | None:
    found = event.get("type")
    return found if isinstance(found, str) else None


def _without_checksum(gw: bytes | None) -> bytes | None:
    if gw is None or not _flags(gw) & FLAG_CHECKSUM:
        return gw
    return gw[:_FLAGS] + bytes([gw[_FLAGS] & ~FLAG_CHECKSUM]) + gw[_FLAGS + 1 : -CHECKSUM_BYTES]


def _flags(gw: bytes | None) -> int:
    return gw[_FLAGS] if gw is not None and len(gw) > _FLAGS else 0


def _bytes(batch: pa.RecordBatch, text: str, original: str | None = None) -> list[bytes]:
    """Return a column as bytes; where the column of original bytes has some, these."""
    found = batch.column(text).cast(pa.binary()).to_pylist()
    originals = batch.column(original).to_pylist() if original in batch.schema.names else [None] * len(found)
    return [given or value or b"" for given, value in zip(originals, found, strict=True)]


def _replaced(batch: pa.RecordBatch, columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Return a batch of the same schema with other values in some columns."""
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else batch.column(field.name)
        for field in batch.schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
