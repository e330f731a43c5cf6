"""
Which tables and columns an event goes to, and its row there. Pure.

    Record -> Entry           the event, parsed once
    Entry -> tables_of        the table of its type, and of a track event that of its name
    Entry, table -> cells_of  its properties, traits and context: column and value
    Entry, layout -> row_of   its row: what does not fit into a column is in `_rescued`

A nested object becomes columns of its fields, OBJECTS_DEEP_MAX deep; a list and what is deeper become JSON
text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import orjson

from dedupe.model.cloudevent import DATA, DATA_BASE64, DATA_TYPE
from dedupe.model.identity import is_blank
from dedupe.model.record import FLAG_CLOUDEVENT
from pipeline.transforms.table_names import (
    CLOUDEVENTS,
    CONTEXT,
    LATEST_TABLES,
    OTHERS,
    TYPE_TABLES,
    column_of,
    table_of,
)
from pipeline.transforms.table_types import Type, fitted, json_text

RESCUED = "_rescued"
OBJECTS_DEEP_MAX = 4
PROPERTIES, TRAITS = "properties", "traits"
_FIELD_OF_TYPE = {
    "track": PROPERTIES,
    "page": PROPERTIES,
    "screen": PROPERTIES,
    "identify": TRAITS,
    "group": TRAITS,
}
_LONG_NUMBER = re.compile(rb"\d{19}")
"""What orjson may read as a float, though it is an integer."""

WHOLE = frozenset({CLOUDEVENTS, OTHERS})
"""The tables whose rows have the whole event in `value`."""

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)


class Record(NamedTuple):
    """One record of a topic or archive."""

    partition: int
    offset: int
    timestamp: datetime | None
    source: str | None
    key: bytes | None
    value: bytes | None
    gw: bytes | None
    log_epoch: int = 0


class Cell(NamedTuple):
    """A value on its way into a column."""

    column: str
    path: str
    """As the event names it: properties.address.city."""
    value: Any


@dataclass(frozen=True)
class Entry:
    """An event and its record."""

    record: Record
    event: Mapping[str, Any]
    """Empty if the value is no JSON object."""
    table: str

    @property
    def name(self) -> str | None:
        """The name of a track event."""
        return text_of(self.event.get("event")) if self.table == TYPE_TABLES["track"] else None

    @property
    def event_table(self) -> str | None:
        """The table of that name; blank names have none."""
        name = self.name
        return None if name is None or is_blank(name) else table_of(name)

    @property
    def field(self) -> str | None:
        """`properties` or `traits`, whichever its type has."""
        return None if self.is_whole else _FIELD_OF_TYPE.get(self.event.get("type", ""))

    @property
    def is_whole(self) -> bool:
        """Whether its row has the whole event, and no column that depends on it."""
        return self.table in WHOLE

    @property
    def log_time(self) -> datetime:
        """When the gateway accepted it, within the years that every table holds."""
        return min(max(self.record.timestamp or EARLIEST, EARLIEST), LATEST)


def read_entry(record: Record) -> Entry:
    """Parse a record; any bytes are an entry."""
    event = read_object(record.value or b"")
    is_cloudevent = bool(record.gw and len(record.gw) > 1 and record.gw[1] & FLAG_CLOUDEVENT)
    if is_cloudevent:
        return Entry(record, event, CLOUDEVENTS)
    event_type = event.get("type")
    known = TYPE_TABLES.get(event_type) if isinstance(event_type, str) else None
    return Entry(record, event, known or OTHERS)


def tables_of(entry: Entry) -> Iterator[str]:
    """Yield the tables that an event has a row in: that of its type, and of its name."""
    yield entry.table
    if (named := entry.event_table) is not None:
        yield named


def cells_of(entry: Entry, table: str) -> Iterator[Cell]:
    """Yield what goes into columns of a table that depend on the event; nulls are left out."""
    if not entry.is_whole:
        yield from (cell for cell in _flattened(CONTEXT, entry.event) if cell.value is not None)
    if entry.field is not None and table != TYPE_TABLES["track"]:
        yield from (cell for cell in _flattened(entry.field, entry.event) if cell.value is not None)


def traits_of(entry: Entry) -> Iterator[Cell]:
    """Yield what goes into columns of latest traits; a null deletes a trait."""
    yield from _flattened(TRAITS, entry.event)


def row_of(entry: Entry, table: str, layout: Mapping[str, Type]) -> dict[str, Any]:
    """
    Return the row of an event, by column.

    Args:
        entry: the event.
        table: one of its tables.
        layout: the columns that depend on events, with their types.
    """
    row: dict[str, Any] = fixed_columns(entry)
    rescued: dict[str, Any] = {}
    taken: set[str] = set()
    for cell in cells_of(entry, table):
        column_type = layout.get(cell.column)
        if column_type is None or cell.column in taken:
            rescued[cell.path] = cell.value
            continue
        taken.add(cell.column)
        try:
            row[cell.column] = fitted(cell.value, column_type)
        except ValueError:
            rescued[cell.path] = cell.value
    row[RESCUED] = json_text(rescued) if rescued else None
    return row


def fixed_columns(entry: Entry) -> dict[str, Any]:
    """Return the columns that do not depend on properties, traits and context."""
    record, event = entry.record, entry.event
    sent, original = time_of(event.get("sentAt")), time_of(event.get("timestamp"))
    columns: dict[str, Any] = {
        "id": (record.key or b"").decode(errors="replace"),
        "source": record.source or "",
        "received_at": entry.log_time,
        "log_epoch": record.log_epoch,
        "log_partition": record.partition,
        "log_offset": record.offset,
        "dt": f"{entry.log_time:%Y-%m-%d}",
    }
    if entry.is_whole:
        columns |= {
            "type": text_of(event.get("type")),
            "value": (record.value or b"").decode(errors="replace"),
        }
        return columns | (_attributes(event) if entry.table == CLOUDEVENTS else {})
    columns |= {
        "user_id": text_of(event.get("userId")),
        "anonymous_id": text_of(event.get("anonymousId")),
        "sent_at": sent,
        "original_timestamp": original,
        "timestamp": _corrected(entry.log_time, sent, original),
    }
    if (name := entry.name) is not None:
        columns |= {"event": entry.event_table, "event_text": name}
    for column, field in EXTRA_FIELDS.get(entry.table, {}).items():
        columns[column] = text_of(event.get(field))
    if entry.field is not None:
        given = event.get(entry.field)
        columns[entry.field] = None if given is None else json_text(given)
    return columns


def _attributes(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a CloudEvent's attributes; those without one are in `extensions`."""
    extensions = {name: value for name, value in event.items() if name not in _KNOWN_ATTRIBUTES}
    return {
        **{column: text_of(event.get(name)) for column, name in ATTRIBUTES.items()},
        "event_time": time_of(event.get("time")),
        "data": json_text(event[DATA]) if event.get(DATA) is not None else None,
        "extensions": json_text(extensions) if extensions else None,
    }


ATTRIBUTES = {
    "event_id": "id",
    "event_source": "source",
    "subject": "subject",
    "data_content_type": DATA_TYPE,
    "data_schema": "dataschema",
    "data_base64": DATA_BASE64,
}
"""Columns of CloudEvents, and the attribute: `source` is that of the write key in every table."""

_KNOWN_ATTRIBUTES = frozenset({*ATTRIBUTES.values(), "specversion", "type", "time", DATA})

EXTRA_FIELDS = {
    "pages": {"name": "name", "category": "category"},
    "screens": {"name": "name", "category": "category"},
    "groups": {"group_id": "groupId"},
    "aliases": {"previous_id": "previousId"},
}
"""Columns of one type, and the event's field."""


_COMMON = ("id", "source", "user_id", "anonymous_id")
_TIMES = ("received_at", "sent_at", "original_timestamp", "timestamp")
_PLACE = ("log_epoch", "log_partition", "log_offset", "dt")
_OF_TYPE = {
    OTHERS: ("id", "source", "type", "received_at", "value", *_PLACE),
    CLOUDEVENTS: (
        *("id", "source", "type", "received_at"),
        *(*ATTRIBUTES, "event_time", "data", "extensions", "value"),
        *_PLACE,
    ),
    TYPE_TABLES["track"]: (*_COMMON, "event", "event_text", *_TIMES, PROPERTIES, *_PLACE),
    **{
        table: (*_COMMON, *EXTRA_FIELDS.get(table, ()), *_TIMES, *_PLACE)
        for table in ("pages", "screens", "aliases")
    },
    **{
        # With all traits, nulls too, of which users and accounts can be computed anew.
        table: (*_COMMON, *EXTRA_FIELDS.get(table, ()), *_TIMES, TRAITS, *_PLACE)
        for table in LATEST_TABLES
    },
}
_OF_EVENT = (*_COMMON, "event", "event_text", *_TIMES, *_PLACE)
_CONTENT = {"identifies": (TRAITS,), "groups": (TRAITS,), "aliases": (), **dict.fromkeys(WHOLE, ())}


def columns_of_table(table: str, *, has_content: bool) -> tuple[str, ...]:
    """Return the columns that do not depend on events; `has_content` adds all of `properties` or `traits`."""
    columns = _OF_TYPE.get(table, _OF_EVENT)
    content = _CONTENT.get(table, (PROPERTIES,)) if has_content else ()
    return (*columns, *(name for name in content if name not in columns))


def text_of(value: Any) -> str | None:
    """Return a text or a number as text; a list or an object as JSON; null stays."""
    if value is None or isinstance(value, str):
        return value
    return json_text(value)


def time_of(value: Any) -> datetime | None:
    """Return an ISO 8601 time within the years that every table holds; else None."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return found if EARLIEST <= found <= LATEST else None


def _corrected(received: datetime, sent: datetime | None, original: datetime | None) -> datetime:
    """Return the client's time by the gateway's clock: as long before the arrival as before it was sent."""
    if original is None:
        return received
    if sent is None:
        return original
    age = sent - original
    return min(received - age, LATEST) if timedelta(0) <= age <= received - EARLIEST else original


def _flattened(field: str, event: Mapping[str, Any]) -> Iterator[Cell]:
    """Yield the values in an object of an event, by column."""
    if isinstance(given := event.get(field), dict):
        yield from _fields(field, (), given)


def _fields(field: str, around: tuple[str, ...], given: Mapping[str, Any]) -> Iterator[Cell]:
    for name, value in given.items():
        path = (*around, name)
        if isinstance(value, dict) and value and len(path) <= OBJECTS_DEEP_MAX:
            yield from _fields(field, path, value)
        else:
            yield Cell(column_of(field, path), ".".join((field, *path)), value)


def read_object(value: bytes) -> Mapping[str, Any]:
    try:
        event = orjson.loads(value)
        if _LONG_NUMBER.search(value):
            event = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
