"""
Identify: turns the items of a request into events, or into quarantine events with a reason.

An event's identity and fingerprint come from the event exactly as it was sent; what the batch adds
(context, integrations, sentAt) and what the gateway adds (type, receivedAt, an id where there is
none) goes into the record's value only, see record_values. One bad item never harms the others.

This runs for every event. Most are plain, and identified many at once (app.ingest.plain_events).

routes.post_events -> **Identifier.steps**, Router.submit -> Lane.submit -> admit -> PartitionLog.append
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from app.http import RequestTooLargeError
from app.ingest.deep_json import dumps_any, is_deeper, may_be_deeper
from app.ingest.event_limits import RETRY_BYTES_FREE, STEP_BYTES, STEP_EVENTS, EventLimits
from app.ingest.large_json import Oversize
from app.ingest.message_ids import PAYLOAD_BYTES, derived_id, fresh_id
from app.ingest.payload import Payload
from app.ingest.plain_events import PlainEvents
from app.ingest.record_values import REPLACED, WRITE_KEY, RecordValues
from app.ingest.session_events import SessionEvents
from app.ingest.session_fields import SEQUENCE, ClientSession
from dedupe.document import is_event_type
from dedupe.identity import (
    MESSAGE_ID_BYTES_MAX,
    RETRY_FIELDS,
    Identity,
    canonical_content,
    fingerprint_of,
)
from dedupe.quarantine import KEPT_BYTES_MAX, Quarantine
from dedupe.record import FLAG_ID_ASSIGNED, FLAG_NOT_IDEMPOTENT
from dedupe.routing import partition_of
from dedupe.types import Event, Fingerprint, Session

NOT_AN_OBJECT = "not_an_object"
EVENT_TOO_LARGE = "event_too_large"
EVENT_TOO_DEEP = "event_too_deep"
MESSAGE_ID_INVALID = "message_id_invalid"
TYPE_INVALID = "type_invalid"
SEQUENCE_INVALID = "sequence_invalid"

TIMESTAMP = "timestamp"
"""Told anew at each try by clients that name no event; only there it is no part of what they say."""


class Rejection(NamedTuple):
    """One item that is kept apart, as its receipt tells."""

    place: int  # among the items
    message_id: str | None  # None if it has no valid one
    code: str


class Identified(NamedTuple):
    """The items of one request, each of them in exactly one of two ways."""

    events: list[Event]
    places: list[int]  # of the events among the items
    quarantined: list[Event]
    rejections: list[Rejection]  # of the quarantined, same order

    @property
    def size_bytes(self) -> int:
        """What all of their values take."""
        return sum([len(event.value) for event in (*self.events, *self.quarantined)])


class Arrival(NamedTuple):
    """What is known of a request besides its items."""

    source: str
    received_ms: int
    default_type: str = "track"
    idempotency_key: bytes | None = None
    fingerprints: Sequence[Fingerprint] = ()
    """Of the items as their clients sent them, where stored records are sent again; else empty."""
    client_ip: str | None = None
    """Becomes `context.ip` of events without; no part of what they say, since retries come from elsewhere."""
    session: ClientSession | None = None
    is_strict: bool = False
    """Whether an event of the session that is not the next one is refused."""
    stored_sessions: Sequence[Session | None] = ()
    """Of the items, where stored records are sent again and any of them has one; else empty."""


class Identifier:
    """Identifies events for one deployment."""

    def __init__(
        self,
        identity: Identity,
        partitions: int,
        quarantine: Quarantine,
        limits: EventLimits,
        *,
        fingerprint_ignore: frozenset[str] = frozenset(),
        earlier_ignore: Sequence[frozenset[str]] = (),
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """
        Take the clean topic's partition count, and fields that retries change besides the known ones.

        `earlier_ignore`: what `fingerprint_ignore` was when events were stored that are still remembered.
        """
        self.identity = identity
        self.partitions = partitions
        self.quarantine = quarantine
        self.limits = limits
        self.ignore = RETRY_FIELDS | fingerprint_ignore
        self.earlier_ignore = earlier_ignore
        self.changed_fields = frozenset[str]().union(*(rule ^ fingerprint_ignore for rule in earlier_ignore))
        self.random_bytes = random_bytes

    def identify(self, payload: Payload, arrival: Arrival) -> Identified:
        """Identify every item at once; see `steps`."""
        found = Identified([], [], [], [])
        for _ in self.steps(payload, arrival, found):
            pass
        return found

    def steps(self, payload: Payload, arrival: Arrival, found: Identified) -> Iterator[None]:
        """
        Identify every item in short steps: each becomes an event or a rejection in `found`, in order.

        Raises:
            RequestTooLargeError: the events would exceed the limit once the batch-level fields
                are merged into each, or these would add too much; nothing is built beyond it.
        """
        request = _Request(self, payload.shared, arrival)
        request.check_growth(len(payload.items))
        items, first = payload.items, 0
        while first < len(items):
            if first:
                yield
            first += request.identify(first, items[first : first + STEP_EVENTS], found)


class _RefusedError(Exception):
    """An item cannot become a clean event."""

    def __init__(self, code: str, value: bytes | None = None, said: bytes | None = None) -> None:
        """Take the reason, the record's value if it could be built, and its content if it is known."""
        self.code = code
        self.value = value
        self.said = said


def _no_event(item: object) -> _RefusedError:
    """Return why an item that is no JSON object is refused."""
    if isinstance(item, Oversize):
        return _RefusedError(EVENT_TOO_LARGE, item.content)
    return _RefusedError(NOT_AN_OBJECT)


class _Request:
    """The items' surroundings, prepared once."""

    def __init__(self, identifier: Identifier, shared: Mapping[str, Any], arrival: Arrival) -> None:
        self._identifier = identifier
        self._ignore = identifier.ignore
        if arrival.session is not None:
            self._ignore |= arrival.session.own_fields
        self._ignore_unnamed = self._ignore
        if arrival.idempotency_key is not None:
            self._ignore_unnamed = self._ignore | {TIMESTAMP}
        self._limits = identifier.limits
        self._arrival = arrival
        self._key_of = identifier.identity.message_keys(arrival.source)
        self._values = RecordValues(
            shared,
            received_ms=arrival.received_ms,
            default_type=arrival.default_type,
            client_ip=arrival.client_ip,
            depth_max=self._limits.event_depth_max,
        )
        self.size_bytes = 0
        """Of the items so far, as the limits count them: what was sent, and not what is added here."""
        self._has_valid_type = is_event_type(arrival.default_type)
        self._sessions = SessionEvents(
            identifier.identity,
            identifier.partitions,
            arrival.source,
            session=arrival.session,
            stored=arrival.stored_sessions,
            is_strict=arrival.is_strict,
        )
        self._has_sessions = arrival.session is not None or bool(arrival.stored_sessions)
        self._plain_events: PlainEvents | None = None
        # Without an id, an idempotency key makes an event's timestamp no part of what it says.
        is_unusual = self._has_sessions and arrival.idempotency_key is not None
        if not (is_unusual or arrival.fingerprints or arrival.stored_sessions or self._values.is_too_deep):
            self._plain_events = PlainEvents(
                self._values,
                self._limits,
                ignored=self._ignore,
                special=identifier.changed_fields | self._values.merged_names,
                source=arrival.source,
                key_of=self._key_of,
                partitions=identifier.partitions,
                sessions=self._sessions if self._has_sessions else None,
            )

    def check_growth(self, count: int) -> None:
        """Raise RequestTooLargeError if what is merged into so many events is more than allowed."""
        growth_bytes_max = self._limits.growth_bytes_max
        if count * self._values.merged_bytes > growth_bytes_max:
            raise RequestTooLargeError(told=f"batch-level fields add more than {growth_bytes_max:,} bytes")

    def identify(self, first: int, items: Sequence[object], found: Identified) -> int:
        """Identify items from place `first` on, and return how many. Raises RequestTooLargeError."""
        taken = self._plain_events.take(first, items) if self._plain_events is not None else None
        if taken is None:
            return self._identify_each(first, items, found)
        events, size_bytes = taken
        self._add_size(size_bytes)
        found.events.extend(events)
        found.places.extend(range(first, first + len(events)))
        return len(events)

    def _identify_each(self, first: int, items: Sequence[object], found: Identified) -> int:
        bytes_left = STEP_BYTES
        for place, item in enumerate(items, first):
            try:
                event = self.event_of(place, item)
            except _RefusedError as refusal:
                rejection, event = self.refused(place, item, refusal)
                found.rejections.append(rejection)
                found.quarantined.append(event)
            else:
                found.events.append(event)
                found.places.append(place)
            bytes_left -= len(event.value)
            if bytes_left < 0:
                break
        return place + 1 - first

    def _add_size(self, size_bytes: int) -> None:
        """Count what is about to be built. Raises RequestTooLargeError."""
        self.size_bytes += size_bytes
        size_bytes_max = self._limits.request_bytes_max
        if self.size_bytes > size_bytes_max:
            raise RequestTooLargeError(told=f"more than {size_bytes_max:,} bytes")

    def event_of(self, index: int, item: object) -> Event:
        """Return one item as an event of the clean stream. Raises _RefusedError."""
        if type(item) is not dict:
            raise _no_event(item)
        message_id, event_type = item.get("messageId"), item.get("type")
        session = self._sessions.at(index, item) if self._has_sessions else None
        ignored, flags = self._ignored_of(message_id), 0
        assigned: dict[str, object] = {}
        try:
            content = canonical_content(item, ignored)
            self._count(content, _retry_bytes(item, ignored))
            if message_id is None:
                message_id, flags = self._assigned_id(index, session)
                assigned = {"messageId": message_id}
            value = self._values.joined(item, assigned)
        except TypeError as err:
            raise _RefusedError(EVENT_TOO_DEEP) from err
        if self._is_too_deep(item, value):
            raise _RefusedError(EVENT_TOO_DEEP)
        id_bytes = message_id.encode() if type(message_id) is str else b""
        if not 0 < len(id_bytes) <= MESSAGE_ID_BYTES_MAX:
            raise _RefusedError(MESSAGE_ID_INVALID, value)
        if not (self._has_valid_type if event_type is None else is_event_type(event_type)):
            raise _RefusedError(TYPE_INVALID, value)
        identifier, known = self._identifier, self._arrival.fingerprints
        fingerprint = known[index] if known else fingerprint_of(content)
        if session is None:
            if self._has_sessions and not self._sessions.is_stored:
                raise _RefusedError(SEQUENCE_INVALID, value)
            key = self._key_of(id_bytes)
            partition = partition_of(key, identifier.partitions)
            event = Event(key, partition, fingerprint, self._arrival.source, message_id, value, flags)
        else:
            event = self._sessions.event(session, fingerprint, message_id, value, flags)
        if known or identifier.changed_fields.isdisjoint(item):
            return event
        return event._replace(earlier_fingerprints=self._earlier_fingerprints(item, ignored))

    def refused(self, index: int, item: object, refusal: _RefusedError) -> tuple[Rejection, Event]:
        """Return what the client is told of a refused item, and the quarantine event that keeps it."""
        message_id, assigned, said = None, "", refusal.said
        if isinstance(item, Oversize):
            message_id = item.message_id
        elif isinstance(item, dict):
            message_id = item.get("messageId")
            assigned = self._sessions.id_of(self._sessions.at(index, item)) or ""
            ignored = self._ignored_of(message_id)
            if refusal.code == SEQUENCE_INVALID:  # all that tells it from others like it
                ignored -= {SEQUENCE}
            said = said or dumps_any({name: item[name] for name in item if name not in ignored})
            item = {name: value for name, value in item.items() if name != WRITE_KEY}
        if type(message_id) is not str or not 0 < len(message_id.encode()) <= MESSAGE_ID_BYTES_MAX:
            message_id = None
        content = refusal.value or dumps_any(item)
        if refusal.value is None:  # else it is counted already
            self._add_size(min(len(said or content), KEPT_BYTES_MAX))
        event = self._identifier.quarantine.event(
            source=self._arrival.source,
            message_id=message_id or assigned,
            fingerprint=fingerprint_of(said or content),
            content=content,
            reason=refusal.code,
        )
        return Rejection(index, message_id, refusal.code), event

    def _ignored_of(self, message_id: object) -> frozenset[str]:
        """Return the fields that are no part of what an item with this id says."""
        return self._ignore if message_id is not None else self._ignore_unnamed

    def _count(self, content: bytes, retry_bytes: int) -> None:
        """Add an item to the request's size, before anything is merged. Raises _RefusedError."""
        size = len(content) + self._values.merged_bytes + retry_bytes
        if size > self._limits.event_bytes_max:
            raise _RefusedError(EVENT_TOO_LARGE, said=content)
        self._add_size(size)

    def _is_too_deep(self, item: dict[str, Any], value: bytes) -> bool:
        """Whether what the record keeps of an item nests too deep, or what is merged into it does."""
        depth_max = self._limits.event_depth_max
        if self._values.is_too_deep:
            return True
        if not may_be_deeper(value, depth_max):
            return False
        return is_deeper({name: item[name] for name in item if name not in REPLACED}, depth_max)

    def _earlier_fingerprints(self, item: dict[str, Any], ignored: frozenset[str]) -> tuple[Fingerprint, ...]:
        """Return the fingerprints by the rules under which an original may have been stored."""
        identifier = self._identifier
        if not identifier.earlier_ignore:
            return ()
        always = RETRY_FIELDS | (ignored - identifier.ignore)
        return tuple(
            fingerprint_of(canonical_content(item, always | rule)) for rule in identifier.earlier_ignore
        )

    def _assigned_id(self, index: int, session: Session | None) -> tuple[str, int]:
        """Return an id for an event that has none, and the flags that say so."""
        arrival = self._arrival
        if (derived := self._sessions.id_of(session)) is not None:
            return derived, FLAG_ID_ASSIGNED
        if arrival.idempotency_key is None:
            payload = self._identifier.random_bytes(PAYLOAD_BYTES)
            return fresh_id(arrival.received_ms, payload), FLAG_ID_ASSIGNED | FLAG_NOT_IDEMPOTENT
        return derived_id(arrival.source, arrival.idempotency_key, index), FLAG_ID_ASSIGNED


def _retry_bytes(item: dict[str, Any], ignored: frozenset[str]) -> int:
    """Return what counts for limits of an item's fields that are no part of what it says."""
    own = {name: item[name] for name in ignored if name in item and name not in REPLACED}
    return max(0, len(orjson.dumps(own)) - RETRY_BYTES_FREE) if own else 0
