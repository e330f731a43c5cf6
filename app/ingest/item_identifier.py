"""
Identifies the items of one request: key, fingerprint and value of each, or why it is rejected.

Identifier.identify -> **ItemIdentifier.event_of**
"""

from collections.abc import Container, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from app.ingest.client_sessions import SessionKeys
from app.ingest.event_limits import EVENT_WORK_BYTES, RETRY_BYTES_FREE
from app.ingest.fingerprint_rules import content_of, stored_json
from app.ingest.identified import Arrival, RefusedError, Rejection, unpacked
from app.ingest.item_numbers import ItemNumbers, store_in_steps
from app.ingest.items import Oversize, Packed
from app.ingest.message_ids import PAYLOAD_BYTES, derived_id, fresh_id
from app.ingest.native import NativeModule
from app.ingest.payload import is_wrapped
from app.ingest.record_values import REPLACED, RecordValues, is_deeper_record
from app.ingest.rejected import quarantine_events
from app.ingest.shared_fields import Growth
from dedupe.decide.rejection import RejectionCode
from dedupe.model.identity import (
    MESSAGE_ID_BYTES_MAX,
    canonical_json,
    fingerprint_of,
    message_id_of,
    take_message_id,
)
from dedupe.model.json_document import is_event_type, read_document
from dedupe.model.record import FLAG_ID_ASSIGNED, FLAG_NOT_IDEMPOTENT
from dedupe.model.types import Event, Fingerprint, Order, Session, event_of

if TYPE_CHECKING:
    from gateway_native import Request

    from app.ingest.identify import Identifier

NO_FINGERPRINTS: tuple[Fingerprint, ...] = ()

TIMESTAMP = "timestamp"
"""Clients without message ids set it at each retry, so it is not content of these events."""


class ItemIdentifier:
    """Identifies the items of one request, one by one."""

    replaced = REPLACED
    """Fields of an item that are not part of its record."""
    flags = 0
    """Those of the quarantine records of its items."""
    retry_fields = frozenset[str]()
    """Fields that retries change, besides those of the rules."""

    def __init__(
        self,
        identifier: "Identifier",
        shared: Mapping[str, Any],
        arrival: Arrival,
        lossy: set[int],
        lossy_fields: Container[int] = (),
    ) -> None:
        """
        Prepare a request.

        Args:
            identifier: what all requests have in common.
            shared: the batch-level fields.
            arrival: the properties of the request.
            lossy: gets the index of each event in whose record a number is null.
            lossy_fields: the `id` of each batch-level object in which a number is null.
        """
        self.lossy, self._lossy_fields = lossy, lossy_fields
        self._identifier = identifier
        self._arrival = arrival
        self._partition_of = identifier.partition_map.of
        self._event_bytes_max = identifier.limits.event_bytes_max
        self.bytes_left = identifier.limits.request_bytes_max
        self._rules, self._fingerprints = identifier.rules, arrival.fingerprints
        self._compares_more = bool(arrival.fingerprints or identifier.rules.changed_fields)
        self._ignored = identifier.rules.ignore
        if self.retry_fields:
            self._ignored |= self.retry_fields
        if arrival.session is not None:
            self._ignored |= arrival.session.own_fields
        self._ignored_unnamed = self._ignored  # of items without an id
        if arrival.idempotency_key is not None:
            self._ignored_unnamed = self._ignored | {TIMESTAMP}
        self._key_of = identifier.identity.message_keys(arrival.source)
        self._set_shared(shared)
        self._default_type = arrival.default_type
        self._valid_type: object = None  # the last valid type
        self._sessions: SessionKeys | None = None
        if arrival.session is not None or arrival.stored_sessions:
            self._sessions = SessionKeys(
                identifier.identity,
                identifier.partition_map,
                arrival.source,
                session=arrival.session,
                stored=arrival.stored_sessions,
            )
        self.numbers: ItemNumbers | None = None  # of the item, if any is spelled otherwise than orjson does
        self.work = 0  # the item's, besides the bytes of its value, in bytes of parsing
        self._needs_place = arrival.session is not None and not arrival.stored_sessions
        self._order = Order.STRICT if arrival.is_strict else Order.ANY
        if arrival.stored_sessions:
            self._order = Order.REPLAYED

    def _set_shared(self, shared: Mapping[str, Any]) -> None:
        """Let the following items have these batch-level fields."""
        self._shared, limits = shared, self._identifier.limits
        self._values = RecordValues(
            shared,
            received_ms=self._arrival.received_ms,
            default_type=self._arrival.default_type,
            client_ip=self._arrival.client_ip,
            ignored=self._ignored,
            depth_max=limits.event_depth_max,
        )
        self._depth_max = -1 if self._values.is_too_deep else limits.event_depth_max
        self.merged_bytes, self.merges_lost = self._values.merged_bytes, id(shared) in self._lossy_fields

    def merge(self, index: int, own: Mapping[str, Any], growth: Growth) -> None:
        """Let the next item have the fields of its own batch, if there is room for them."""
        if not growth.is_over:
            if own is not self._shared:
                self._set_shared(own)
            growth.add(self.merged_bytes)
        if growth.is_over and (rest := growth.leave_out(own)) is not self._shared:
            self._set_shared(rest)
        if self.merges_lost:
            self.lossy.add(index)

    def plain(self, native: NativeModule) -> "Request | None":
        """Return what the native module needs to know of the request; None if no event of it is plain."""
        return native.request_of(
            self._arrival,
            self._values,
            ignored=self._ignored,
            changed_fields=self._rules.changed_fields,
            order=self._order if self._needs_place else Order.ANY,
        )

    def event_of(self, index: int, item: object) -> Event:
        """Return an item as an event of the clean topic. Raises RefusedError."""
        if type(item) is not dict:
            item, self.work = unpacked(item)
        place = None if self._sessions is None else self._sessions.place_of(index, item)
        message_id, ignored, assigned_id, flags = item.get("messageId"), self._ignored, None, 0
        if type(message_id) is not str or not "!" <= message_id < "\x7f":
            message_id, ignored, assigned_id, flags = self._unusual_id(index, item, place)
        try:
            content, retried = self._content_of(index, item, ignored)
            self._count(content, retried)
            value = self._values.value_of(item, content, retried, assigned_id)
        except TypeError as err:
            raise RefusedError(RejectionCode.EVENT_TOO_DEEP) from err
        brackets = len(value) - len(value.replace(b"{", b"").replace(b"[", b""))  # count() is slower
        if brackets > self._depth_max and is_deeper_record(item, value, self._depth_max):
            raise RefusedError(RejectionCode.EVENT_TOO_DEEP)
        id_bytes = message_id.encode()
        if not 0 < len(id_bytes) <= MESSAGE_ID_BYTES_MAX:
            raise RefusedError(RejectionCode.MESSAGE_ID_INVALID, value)
        event_type = item.get("type", self._default_type)
        if event_type is None or event_type != self._valid_type:
            self._check_type(event_type, value)
        order = Order.ANY
        if place is not None:
            assert self._sessions is not None
            order = self._order
            key, partition, secondary_key = self._sessions.keys_of(place, None if flags else id_bytes)
        elif self._needs_place:
            raise RefusedError(RejectionCode.SEQUENCE_INVALID, value)
        else:
            key, secondary_key = self._key_of(id_bytes), None
            partition = self._partition_of(key)
        fingerprint, earlier = fingerprint_of(content), NO_FINGERPRINTS
        if self.numbers is not None or self._compares_more:
            fingerprint, earlier = self._compared(index, item, ignored, fingerprint)
        return event_of(
            (
                key,
                partition,
                fingerprint,
                self._arrival.source,
                message_id,
                value,
                flags,
                place,
                None,
                earlier,
                secondary_key,
                order,
            )
        )

    def rejection_in_steps(
        self, index: int, item: object, refusal: RefusedError
    ) -> Generator[int, None, Rejection]:
        """Return a refused item with the event that quarantines it, and yield the work of each step."""
        if isinstance(item, Packed):
            item = read_document(item.content)
        if isinstance(item, dict) and not refusal.assigned_id and self._sessions is not None:
            refusal.assigned_id = self._sessions.id_of(self._sessions.place_of(index, item)) or ""
        yield from store_in_steps(item)
        return self.rejection_of(index, item, refusal)

    def take_work(self) -> int:
        """Return the work on the last item, once."""
        work, self.work, self.numbers = self.work, 0, None
        return work

    def rejection_of(self, index: int, item: object, refusal: RefusedError) -> Rejection:
        """Return a refused item with the event that quarantines it."""
        message_id = None
        ignored = self._ignored
        if isinstance(item, dict):
            message_id, ignored = self._message_id_of(item)
        elif isinstance(item, Oversize):
            message_id = message_id_of(item.message_id)
        if not 0 < len((message_id or "").encode()) <= MESSAGE_ID_BYTES_MAX:
            message_id = None
        events = quarantine_events(
            self._identifier.quarantine,
            item,
            refusal,
            source=self._arrival.source,
            message_id=message_id or refusal.assigned_id,
            ignored=ignored,
            flags=self.flags,
        )
        return Rejection(index, message_id, refusal.code, events)

    def _message_id_of(self, item: dict[str, Any]) -> tuple[str | None, frozenset[str]]:
        """Return the message id of an item, see take_message_id, and the fields that are not its content."""
        message_id = take_message_id(item)
        return message_id, self._ignored if message_id is not None else self._ignored_unnamed

    def _unusual_id(
        self, index: int, item: dict[str, Any], place: Session | None
    ) -> tuple[str, frozenset[str], str | None, int]:
        """Return an item's id, the fields that are not its content, the id if it is assigned, and flags."""
        message_id, ignored = self._message_id_of(item)
        if message_id is not None:
            return message_id, ignored, None, 0
        if is_wrapped(item):
            raise RefusedError(RejectionCode.UNREADABLE)  # a batch that is wrapped too often
        assigned_id, flags = self._assigned_id(index, place)
        return assigned_id, ignored, assigned_id, flags

    def _content_of(self, index: int, item: dict[str, Any], ignored: frozenset[str]) -> tuple[bytes, bytes]:
        """
        Return an item's content as it is stored, and the JSON of the other fields of its record.

        Raises TypeError: see canonical_json; ManyItemNumbersError.
        """
        try:
            if ignored.isdisjoint(item):
                return canonical_json(item), b""
            return content_of(item, ignored, self.replaced)
        except TypeError:
            self.numbers = self.numbers or ItemNumbers(item, partial(self._fingerprints_of, ignored=ignored))
            self.work += EVENT_WORK_BYTES  # `take_work` forgets the numbers
            self.work += self.numbers.read()
        if self.numbers.is_lossy:
            self.lossy.add(index)
        return content_of(item, ignored, self.replaced, stored_json)

    def _compared(
        self, index: int, item: dict[str, Any], ignored: frozenset[str], fingerprint: Fingerprint
    ) -> tuple[Fingerprint, tuple[Fingerprint, ...]]:
        """Return the fingerprint of an item, given that of what is stored, and those by the earlier rules."""
        if self._fingerprints:
            return self._fingerprints[index], NO_FINGERPRINTS
        if self.numbers is not None:
            fingerprint, *earlier = self.numbers.fingerprints
            return fingerprint, tuple(earlier)
        return fingerprint, self._rules.earlier_of(item, ignored)

    def _fingerprints_of(self, item: dict[str, Any], ignored: frozenset[str]) -> Iterator[Fingerprint]:
        """Yield the fingerprints of an item with a Number, see FingerprintRules.fingerprints."""
        return self._rules.fingerprints(item, ignored)

    def _count(self, content: bytes, retried: bytes) -> None:
        """
        Add an item to the request's size.

        Raises RefusedError: it exceeds the limit of an event, or the rest of that of the request.
        """
        size_bytes = len(content) + self.merged_bytes
        if len(retried) > RETRY_BYTES_FREE:
            size_bytes += len(retried) - RETRY_BYTES_FREE
        if size_bytes > self._event_bytes_max:
            raise RefusedError(RejectionCode.EVENT_TOO_LARGE, content=content)
        if size_bytes > self.bytes_left:
            raise RefusedError(RejectionCode.REQUEST_TOO_LARGE, content=content)
        self.bytes_left -= size_bytes

    def _check_type(self, event_type: object, value: bytes) -> None:
        """Check a type that differs from the last one; None: that of the path. Raises RefusedError."""
        if event_type is None:
            event_type = self._default_type
        if not is_event_type(event_type):
            raise RefusedError(RejectionCode.TYPE_INVALID, value)
        self._valid_type = event_type

    def _assigned_id(self, index: int, place: Session | None) -> tuple[str, int]:
        """Return an id for an event without one, and the flags of its record."""
        arrival = self._arrival
        if self._sessions is not None and (derived := self._sessions.id_of(place)) is not None:
            return derived, FLAG_ID_ASSIGNED
        if arrival.idempotency_key is None:
            payload = self._identifier.random_bytes(PAYLOAD_BYTES)
            return fresh_id(arrival.received_ms, payload), FLAG_ID_ASSIGNED | FLAG_NOT_IDEMPOTENT
        return derived_id(arrival.source, arrival.idempotency_key, index), FLAG_ID_ASSIGNED
