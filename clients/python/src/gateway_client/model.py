"""What the parts of the client share: places, events as they are queued, batches, errors."""

import base64
import json
import logging
import math
import secrets
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, Self
from uuid import UUID

VERSION = "1.0.0"

BATCH_EVENTS = 100
"""At most 512: so many sequences above the acknowledged ones a session may have under way."""

BATCH_BYTES = 500_000
EVENT_BYTES_MAX = 700_000
"""The gateway's own limit is 800 KiB by default, with what it adds to an event."""

EVENT_REFUSED, EVENT_DAMAGED = "event_refused", "event_damaged"
"""Codes of dead letters that the gateway has no copy of: what nobody takes, what cannot be read any more."""

KSUID_EPOCH_S = 1_400_000_000
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

NO_ID = frozenset("\u200b\u200c\u200d\u2060\ufeff")
"""Characters of no width: an id of nothing but these and white space is none to the gateway."""

logger = logging.getLogger("gateway_client")


class QueueInUseError(Exception):
    """Another client has this file open."""


class QueueFullError(Exception):
    """More events wait than may; none of the call's was queued, or the oldest were dropped for them."""


class ClosedError(RuntimeError):
    """The client was closed: it takes no events any more."""


class DeliveryError(Exception):
    """A try to deliver has failed, and is repeated."""


class DamagedQueueError(Exception):
    """The queue's file was damaged or has vanished; what could be read of it is queued again."""


class NotDurableError(Exception):
    """The queue's file cannot be opened, or not be written any more: what changes ends with the process."""


class OtherSourceError(Exception):
    """Events wait that belong to another source than that of the present write key."""


class Place(NamedTuple):
    """Which event it is: GET /v1/sessions/{session} tells what the gateway has of the session."""

    session: str  # a KSUID
    sequence: int  # from 1

    @property
    def message_id(self) -> str:
        """The id of an event that has none of its own, once it leaves this place."""
        return f"{self.session}-{self.sequence}"


class DeadLetter(NamedTuple):
    """An event that will not be stored."""

    place: Place
    code: str  # EVENT_REFUSED, EVENT_DAMAGED, or of "Events that are kept apart" in docs/http-api.md
    message: str
    event: dict[str, Any]


class Queued(NamedTuple):
    """One event: its JSON never changes while it has its place."""

    content: bytes
    has_id: bool
    queued_at_ms: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """
        Take an event, and whatever has a plain form in JSON in that form.

        Raises:
            TypeError, ValueError: it is no JSON object, too large, or has a sequence.
        """
        if not isinstance(event, Mapping):
            raise TypeError(f"an event is a mapping, not {type(event).__name__}")
        if event.get("sequence") is not None:
            raise ValueError("an event's sequence is given by the client")
        try:
            content = json.dumps(dict(event), separators=(",", ":"), allow_nan=False, default=_plain).encode()
        except RecursionError:
            raise ValueError("an event may not be nested so deep") from None
        if len(content) > EVENT_BYTES_MAX:
            raise ValueError(
                f"an event may have {EVENT_BYTES_MAX:,} bytes, and this one has {len(content):,}"
            )
        return cls(content, _has_id(event), int(time.time() * 1000))

    @classmethod
    def again(cls, event: Mapping[str, Any]) -> Self:
        """Take an event that was queued before, whatever its size is now."""
        return cls(json.dumps(event, separators=(",", ":")).encode(), _has_id(event), int(time.time() * 1000))

    @property
    def checksum(self) -> int:
        """A CRC-32 of the content, by which damage is noticed."""
        return zlib.crc32(self.content)

    def moved_from(self, place: Place) -> Self:
        """
        Return the event as it goes on in another session.

        Copies of one queue move an event to sessions of their own; by an id made of its first place the
        gateway knows that they are one event.
        """
        if self.has_id:
            return self
        # Of two fields with one name the last one counts.
        comma = b"" if self.content == b"{}" else b","
        content = b'%b%b"messageId":"%b"}' % (self.content[:-1], comma, place.message_id.encode())
        return self._replace(content=content, has_id=True)


def whole_run(rows: Sequence[tuple[Any, ...]]) -> Iterator[Queued]:
    """Yield events up to the first gap, the first damage, or a batch's size."""
    size = 0
    for index, (sequence, content, has_id, queued_at_ms, checksum) in enumerate(rows):
        event = Queued(content, bool(has_id), queued_at_ms)
        size += len(content)
        is_whole = sequence == rows[0][0] + index and event.checksum == checksum
        if not is_whole or (index and size > BATCH_BYTES):
            return
        yield event


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one session without a gap, the oldest that wait."""

    client: str
    session: str
    first_sequence: int
    events: Sequence[Queued]
    sent_before: int
    """Sequences up to it may have been sent before, so they may be stored already."""
    doubtful_through: int
    """Of these, sequences up to it may be stored or not once the session is over."""
    is_last: bool
    """Whether the session gets no events after these."""

    def body(self, sent_at: str) -> bytes:
        """Return the request's body."""
        return b'{"batch":[%b],"firstSequence":%d,"sentAt":"%b"%b}' % (
            b",".join(event.content for event in self.events),
            self.first_sequence,
            sent_at.encode(),
            b',"ended":true' if self.is_last else b"",
        )

    def headers(self) -> dict[str, str]:
        """Return the headers that name the session."""
        return {
            "Gateway-Client": self.client,
            "Gateway-Session": self.session,
            "Gateway-Acknowledged-Through": str(self.first_sequence - 1),
        }


def event_of(content: bytes) -> dict[str, Any]:
    """Return a queued event; one whose content is damaged has it as text under `unreadable`."""
    try:
        event = json.loads(content)
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"unreadable": content.decode("latin-1")}


def is_header(name: str) -> bool:
    """Whether a name can be a header's value, as all are that are not damaged."""
    return name.isascii() and name.isprintable() and bool(name)


def ksuid() -> str:
    """Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62."""
    seconds = max(0, int(time.time()) - KSUID_EPOCH_S) % 2**32
    number = int.from_bytes(seconds.to_bytes(4, "big") + secrets.token_bytes(16), "big")
    digits = ""
    for _ in range(27):
        number, digit = divmod(number, 62)
        digits = BASE62[digit] + digits
    return digits


def now_text() -> str:
    """Return the time as it stands in events."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _has_id(event: Mapping[str, Any]) -> bool:
    message_id = event.get("messageId")
    if isinstance(message_id, str):
        return bool("".join(char for char in message_id if char not in NO_ID).strip())
    return message_id is not None


def _plain(value: object) -> object:
    """Return what JSON has for a value that it does not know. Raises TypeError."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            number = float(value)
            return number if math.isfinite(number) else str(value)
        case UUID():
            return str(value)
        case set() | frozenset():
            return sorted(value, key=str)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()  # a view may have gaps
        case Mapping():
            return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
