"""
The values of the core.

A position is the next offset to read or to assign; a timestamp is log time in milliseconds since 1970.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

Offset: TypeAlias = int
EventKey: TypeAlias = bytes  # 16 bytes, see dedupe.model.identity
Fingerprint: TypeAlias = bytes  # 8 bytes, see dedupe.model.identity
Headers: TypeAlias = list[tuple[str, bytes]]


class Topic(NamedTuple):
    """The clean topic, or its quarantine."""

    name: str
    partitions: int


class Progress(NamedTuple):
    """The stored sequences of a client session before an event."""

    watermark: int  # u64: all sequences up to it
    above: int  # bit i: watermark + 1 + i, of 512


class Session(NamedTuple):
    """The client session of an event; part of its record (record format v1, flag 1)."""

    client_hash: bytes  # 16 bytes, keyed, includes the source
    session_hash: bytes  # 16 bytes, keyed, includes the source
    sequence: int  # u64, from 1
    epoch: int = 0  # u64, 0 = the client uses no epochs
    acknowledged_through: int = 0  # u64
    before: Progress | None = None  # None: not known yet


class Order(Enum):
    """Which new sequences of a client session are accepted."""

    ANY = "any"
    STRICT = "strict"  # the next one only
    REPLAYED = "replayed"  # all: a gateway that knew the whole session has accepted the event before


class Event(NamedTuple):
    """An event with its key, fingerprint and partition."""

    key: EventKey
    partition: int
    fingerprint: Fingerprint
    source: str
    message_id: str
    value: bytes  # JSON, the record's value
    flags: int = 0  # dedupe.model.record.FLAG_*, without the session flag
    session: Session | None = None
    reason: str | None = None  # quarantine records only
    earlier_fingerprints: tuple[Fingerprint, ...] = ()  # by earlier rules, by which originals may be stored
    secondary_key: EventKey | None = None  # only with a session and a message id of its own
    order: Order = Order.ANY  # of an event with a session

    @property
    def headers(self) -> Headers:
        """What its record has besides the headers of its format; see `with_headers`."""
        return []

    @property
    def header_bytes(self) -> int:
        """What they add to its record."""
        return 0

    @property
    def size_bytes(self) -> int:
        """See `size_of`."""
        return (
            len(self.value)
            + 4 * len(self.message_id)
            + len(self.source)
            + RECORD_OVERHEAD_BYTES
            + (0 if type(self) is Event else self.header_bytes)
        )


_NO_HEADERS: Headers = []


class HeadedEvent(Event):
    """An event with headers for its record: few have any, and a field of `Event` would cost all."""

    # Plain attributes, which hide the properties of Event: they are read several times for each event.
    headers: Headers = _NO_HEADERS
    header_bytes: int = 0


def with_headers(event: Event, headers: Headers) -> Event:
    """Return an event with headers for its record, of names that no format has; `_replace` drops them."""
    headed = tuple.__new__(HeadedEvent, event)
    headed.headers, headed.header_bytes = headers, _bytes_of(headers)
    return headed


def have_headers(events: Iterable[Event]) -> bool:
    """Whether any of these has headers."""
    return HeadedEvent in set(map(type, events))


def _bytes_of(headers: Headers) -> int:
    size_bytes = HEADER_OVERHEAD_BYTES * len(headers)
    for name, value in headers:  # not a generator, which is slower
        size_bytes += len(name.encode()) + len(value)
    return size_bytes


_source_of, _message_id_of, _value_of = map(attrgetter, ("source", "message_id", "value"))
_header_bytes_of = attrgetter("header_bytes")


def size_of(events: Sequence[Event]) -> int:
    """Return an upper bound of the size of events in a record batch, and in a lane's queue."""
    value_bytes, source_bytes = sum(map(len, map(_value_of, events))), sum(map(len, map(_source_of, events)))
    id_chars = sum(map(len, map(_message_id_of, events)))
    header_bytes = sum(map(_header_bytes_of, events)) if have_headers(events) else 0
    return value_bytes + 4 * id_chars + source_bytes + header_bytes + RECORD_OVERHEAD_BYTES * len(events)


# Headers and varints of one record: gw and gs with a session are at most 231 bytes; header names, lengths and
# deltas of offset and timestamp are under 60, a quarantine reason under 40; a CloudEvent has no session,
# and 20 bytes for its dialect. With too small a value, a batch would not fit into the builder, and the lane
# would fail.
RECORD_OVERHEAD_BYTES = 332

HEADER_OVERHEAD_BYTES = 8
"""Two lengths as varints, and what the record's own grows by."""


class NewRecord(NamedTuple):
    """A record to append, without an offset yet."""

    timestamp_ms: int
    key: bytes
    value: bytes
    headers: Headers


class LogRecord(NamedTuple):
    """A committed record."""

    offset: Offset
    timestamp_ms: int
    key: bytes
    value: bytes
    headers: Headers


class Entry(NamedTuple):
    """The index's value of one event key: offset and fingerprint of the original."""

    offset: Offset
    fingerprint: Fingerprint


event_of: Callable[[Iterable[Any]], Event] = partial(tuple.__new__, Event)
session_of: Callable[[Iterable[Any]], Session] = partial(tuple.__new__, Session)
entry_of: Callable[[Iterable[Any]], Entry] = partial(tuple.__new__, Entry)
"""Constructors from all fields in order; faster than a call of the class."""
