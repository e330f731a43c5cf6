"""What a request is identified as: its properties, and the events and rejections that become of its items."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from app.ingest.client_sessions import ClientSession
from app.ingest.event_limits import EVENT_WORK_BYTES
from app.ingest.items import Fragment, Oversize, Packed
from dedupe.decide.rejection import RejectionCode
from dedupe.model.json_document import read_document
from dedupe.model.types import Event, Fingerprint, Session


class Dialect(Enum):
    """By which rules the items of a request are events."""

    EVENTS = "events"  # Segment's, with messageId and type
    CLOUDEVENTS = "cloudevents"


class Rejection(NamedTuple):
    """A rejected item."""

    item_index: int
    message_id: str | None  # None without a valid one
    code: str
    events: tuple[Event, ...]  # of the quarantine topic: one, or the pieces of a long one


@dataclass(slots=True)
class Identified:
    """The events and the rejections of one request, in the order of its items."""

    events: list[Event] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    quarantined: list[Event] = field(default_factory=list)  # of the rejections, same order
    size_bytes: int = 0
    """The sum of all values, those of quarantined events included."""
    work_bytes: int = 0
    """That sum, and the work on numbers."""
    lossy: set[int] = field(default_factory=set)
    """The indexes, among the items, of events in whose records a number is null."""

    def indexes(self) -> list[int]:
        """Return the index of each event among the items."""
        rejected = {rejection.item_index for rejection in self.rejections}
        count = len(self.events) + len(self.rejections)
        return [index for index in range(count) if index not in rejected]

    def take(
        self, items: Iterator[Event | list[Event] | Rejection | int], work_bytes: int = sys.maxsize
    ) -> bool:
        """
        Add the next results of `identify`.

        Args:
            items: the results, in order.
            work_bytes: stop after about this many bytes of values and of other work, with EVENT_WORK_BYTES
                for each item.

        Returns:
            Whether items may be left.
        """
        events, size_bytes, numbers_work, is_over = self.events, 0, 0, False
        for item in items:
            if type(item) is Event:
                events.append(item)
                size_bytes += len(item.value)
            elif type(item) is list:
                events += item
                size_bytes += sum([len(event.value) for event in item])
                work_bytes -= EVENT_WORK_BYTES * (len(item) - 1)
            elif type(item) is int:
                numbers_work += item
                work_bytes -= item
            else:
                assert isinstance(item, Rejection)
                self.rejections.append(item)
                self.quarantined += item.events
                size_bytes += sum([len(event.value) for event in item.events])
            work_bytes -= EVENT_WORK_BYTES
            if size_bytes > work_bytes:
                is_over = True
                break
        self.size_bytes += size_bytes
        self.work_bytes += size_bytes + numbers_work
        return is_over


class Arrival(NamedTuple):
    """The properties of a request besides its items."""

    source: str
    received_ms: int
    default_type: str = "track"
    idempotency_key: bytes | None = None
    fingerprints: Sequence[Fingerprint] = ()
    """The original fingerprints of the items if stored records are sent again, otherwise empty."""
    client_ip: str | None = None
    """`context.ip` of events without; not content, since retries may come from other addresses."""
    session: ClientSession | None = None
    is_strict: bool = False
    """Whether an event of the session is refused unless it is the next one."""
    stored_sessions: Sequence[Session | None] = ()
    """The sessions of the items if stored records are sent again and any has one, otherwise empty."""
    dialect: Dialect = Dialect.EVENTS


class Ownership(NamedTuple):
    """Whose the items of a request are, where these have several write keys."""

    sources: Sequence[str]
    shares: Sequence[int]
    """By item: the index of its source."""
    refused: Mapping[int, bytes]
    """By item: the SHA-256 of its write key, if that is not good. Such items are rejected."""


class RefusedError(Exception):
    """An item cannot become a clean event."""

    def __init__(self, code: str, value: bytes | None = None, content: bytes | None = None) -> None:
        """`value`: the record's value, if it could be built; `content`: the canonical content, if known."""
        self.code = code
        self.value = value
        self.content = content
        self.key_digest = b""  # SHA-256 of the item's write key, if that is why
        self.fingerprint = b""  # that of the event, if this is its only fault
        self.assigned_id = ""  # the id that the item was given, if it has none


def unpacked(item: object) -> tuple[dict[str, Any], int]:
    """Return the object of an item that is none as it is, and the work. Raises RefusedError."""
    if isinstance(item, Packed) and isinstance(document := read_document(item.content), dict):
        return document, len(item.content)
    if isinstance(item, Oversize):
        raise RefusedError(RejectionCode.EVENT_TOO_LARGE, item.content)
    if isinstance(item, Fragment):
        raise RefusedError(item.reason)
    raise RefusedError(RejectionCode.NOT_AN_OBJECT)
