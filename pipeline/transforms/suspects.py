"""
Events that may be one event under several ids: same source, person, type, name and client time. Pure.

A gateway knows events by their ids, so it cannot tell a client's bug that sends one call under two ids from
two calls. Whole seconds are too coarse to tell calls of a loop apart: there the content must be the same.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from dedupe.model.identity import is_blank
from pipeline.transforms.table_rows import read_object, text_of
from pipeline.transforms.table_types import json_text

SAMPLES_MAX = 3
UNKNOWN = "unknown"
_NOT_CONTENT = frozenset(
    {"messageId", "sentAt", "receivedAt", "originalTimestamp", "context", "integrations", "_metadata"}
)

SIGNATURES = pa.schema(
    [
        ("signature", pa.int64()),
        ("content", pa.int64()),
        ("message_id", pa.string()),
        ("source", pa.string()),
        ("library", pa.string()),
        ("version", pa.string()),
        ("name", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)

Batches = Iterable[pa.RecordBatch]


class Group(NamedTuple):
    """Events that may be one, each under an id of its own."""

    source: str
    library: str
    version: str
    name: str
    """Type, and of a track event its name."""
    ids: int
    contents: int
    """How many different ones they have; 1: they differ in their ids alone."""
    first: str
    """Place and id of the first by partition and offset."""
    last: str


class Suspects(NamedTuple):
    """The groups of one source, library, version and name."""

    source: str
    library: str
    version: str
    name: str
    groups: int
    extra: int
    """Events beyond the first of each group."""
    identical: int
    """Groups of one content."""
    samples: tuple[tuple[str, str], ...]


def signatures(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield SIGNATURES of the records (schema.RECORD) that have a person, a name and a client time."""
    for batch in batches:
        columns = ("source", "key", "value", "partition", "offset")
        rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        found = (row for record in rows if (row := _signature(*record)) is not None)
        yield pa.RecordBatch.from_pylist(list(found), SIGNATURES)


def groups_of(rows: Batches) -> list[Group]:
    """Return the groups among rows of SIGNATURES; memory grows with the rows."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for batch in rows:
        for row in batch.to_pylist():
            found[row["signature"]].append(row)
    groups = []
    for members in found.values():
        ids = {row["message_id"] for row in members}
        if len(ids) > 1:
            members.sort(key=lambda row: (row["partition"], row["offset"]))
            first, last = members[0], members[-1]
            groups.append(group_of(first, last, len(ids), len({row["content"] for row in members})))
    return groups


def group_of(first: Mapping[str, Any], last: Mapping[str, Any], ids: int, contents: int) -> Group:
    """Return a group by its first and last row of SIGNATURES."""
    texts = {name: first[name] for name in ("source", "library", "version", "name")}
    return Group(**texts, ids=ids, contents=contents, first=_place_of(first), last=_place_of(last))


def _place_of(row: Mapping[str, Any]) -> str:
    """Return where an event is, and its id."""
    return f"{row['partition']}:{row['offset']} {row['message_id']}"


def summed_up(groups: Iterable[Group]) -> list[Suspects]:
    """Return the groups by source, library, version and name, those with most extra events first."""
    found: dict[tuple[str, ...], list[Group]] = defaultdict(list)
    for group in groups:
        found[group[:4]].append(group)
    rows = [
        Suspects(
            *of[0][:4],
            len(of),
            sum(group.ids - 1 for group in of),
            sum(group.contents == 1 for group in of),
            tuple((group.first, group.last) for group in sorted(of, key=_by_likelihood)[:SAMPLES_MAX]),
        )
        for of in found.values()
    ]
    return sorted(rows, key=lambda row: (-row.extra, row[:4]))


def _by_likelihood(group: Group) -> tuple[int, str]:
    return group.contents, group.first


def _signature(
    source: str | None, key: bytes | None, value: bytes | None, partition: int, offset: int
) -> dict[str, Any] | None:
    event = read_object(value or b"")
    time, event_type = event.get("timestamp"), event.get("type")
    person = [text_of(event.get(field)) for field in ("userId", "anonymousId")]
    is_known = any(text is not None and not is_blank(text) for text in person)
    if not (is_known and isinstance(time, str) and isinstance(event_type, str)):
        return None
    named = text_of(event.get("event" if event_type == "track" else "name"))
    content = _digest([{name: part for name, part in event.items() if name not in _NOT_CONTENT}])
    parts = [source, *person, event_type, named, time, content if "." not in time else 0]
    library = event.get("context", {})
    library = library.get("library", {}) if isinstance(library, dict) else {}
    library = library if isinstance(library, dict) else {}
    return {
        "signature": _digest(parts),
        "content": content,
        "message_id": (key or b"").decode(errors="replace"),
        "source": source or "",
        "library": text_of(library.get("name")) or UNKNOWN,
        "version": text_of(library.get("version")) or UNKNOWN,
        "name": event_type if named is None else f"{event_type} {named}",
        "partition": partition,
        "offset": offset,
    }


def _digest(parts: list[Any]) -> int:
    """Return 64 bits of parts of an event."""
    text = json_text(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)
