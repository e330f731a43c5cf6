"""
Identify: returns an event, or a rejection with its reason, for each item of a request.

An event's key and fingerprint depend on the event as sent. Fields that the batch adds (context, integrations,
sentAt), and that the gateway adds (type, receivedAt, an id), are only part of the record's value, see
app.ingest.record_values. An invalid item does not affect its batch.

routes.post_events -> **Identifier.identify**, Router.submit -> Lane.submit -> admit -> PartitionLog.append
"""

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from app.ingest.cloudevent_identifier import CloudEventIdentifier
from app.ingest.event_limits import STEP_BYTES, EventLimits
from app.ingest.fingerprint_rules import FingerprintRules
from app.ingest.identified import Arrival, Dialect, Ownership, RefusedError, Rejection
from app.ingest.item_identifier import ItemIdentifier
from app.ingest.item_numbers import ManyItemNumbersError, store_in_steps
from app.ingest.items import Packed
from app.ingest.large_json import SMALL_BYTES
from app.ingest.native import NativeModule
from app.ingest.payload import Payload
from app.ingest.record_values import SHARED_FIELDS
from app.ingest.rejected import refusal_of_key
from app.ingest.shared_fields import Growth, without_shared
from dedupe.decide.rejection import RejectionCode
from dedupe.model.identity import Identity
from dedupe.model.json_document import read_document, work_on_numbers
from dedupe.model.quarantine import Quarantine
from dedupe.model.slots import PartitionMap
from dedupe.model.types import Event

if TYPE_CHECKING:
    from gateway_native import Document


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
        Prepare the common part of all requests.

        Args:
            identity: computes keys.
            partitions: the number of partitions that the clean topic began with.
            quarantine: builds events of the quarantine topic.
            limits: the limits of events and requests.
            fingerprint_ignore: fields that retries change, besides RETRY_FIELDS.
            earlier_ignore: the noted rules by which remembered events were stored.
            random_bytes: the source of new ids.
        """
        self.native: NativeModule | None = None
        """Identifies plain events, if the module is there."""
        self.identity = identity
        self.partition_map = PartitionMap(partitions)
        """Which partition an event has; another one if the topic was divided."""
        self.quarantine = quarantine
        self.limits = limits
        self.rules = FingerprintRules(fingerprint_ignore, earlier_ignore)
        self.random_bytes = random_bytes

    def identify(
        self,
        payload: Payload,
        arrival: Arrival,
        ownership: Ownership | None = None,
        *,
        lossy: set[int] | None = None,
    ) -> Iterator[Event | list[Event] | Rejection | int]:
        """
        Yield an event or a rejection for each item, in order, and its work if that is much.

        The events that the native module identifies in one step are one list.

        Batch-level fields that would add too much to all events together are not merged into any, and are
        one more rejection at the end.

        Args:
            payload: the items.
            arrival: the properties of the request.
            ownership: the sources of the items, if not all of them are the one of `arrival`.
            lossy: gets the index of each event in whose record a number is null.
        """
        if self.native is not None and payload.native is None:
            self.native.use.other_events += len(payload.items)
        lossy = set() if lossy is None else lossy
        items_of = ItemIdentifier
        if arrival.dialect is Dialect.CLOUDEVENTS:
            items_of, payload = CloudEventIdentifier, payload._replace(shared={}, own_fields=())
        lossy_fields = yield from _store_shared(payload)
        request, left_out = items_of(self, payload.shared, arrival, lossy, lossy_fields), None
        if (
            request.merged_bytes > self.limits.event_bytes_max
            or len(payload.items) * request.merged_bytes > self.limits.growth_bytes_max
        ):
            yield request.merged_bytes
            payload, left_out = without_shared(payload)
            request = items_of(self, payload.shared, arrival, lossy)
        elif request.merged_bytes > STEP_BYTES:
            yield request.merged_bytes  # writing the fields was work as well
        if request.merges_lost:
            lossy.update(range(len(payload.items)))
        if ownership is not None or payload.own_fields:
            ownership = ownership or Ownership([arrival.source], [0] * len(payload.items), {})
            requests = [
                items_of(self, payload.shared, arrival._replace(source=source), lossy, lossy_fields)
                for source in ownership.sources
            ]
            yield from self._identify_each(payload, ownership, requests)
        elif payload.native is not None:
            yield from self._identify_read(payload, payload.native, request)
        else:
            yield from self._identify_all(enumerate(payload.items), request)
        if left_out is not None:
            yield request.rejection_of(len(payload.items), left_out, RefusedError(left_out.reason))

    def _identify_all(
        self, items: Iterable[tuple[int, object]], request: ItemIdentifier
    ) -> Iterator[Event | Rejection | int]:
        for index, packed in items:
            item = packed
            if type(packed) is Packed and len(packed.content) > SMALL_BYTES:
                item = read_document(packed.content)
                yield len(packed.content) + work_on_numbers()
            try:
                try:
                    identified: Event | Rejection = request.event_of(index, item)
                except ManyItemNumbersError as many:
                    yield from many.numbers.steps()
                    identified = request.event_of(index, many.numbers.item)
            except RefusedError as refusal:
                identified = yield from request.rejection_in_steps(index, item, refusal)
            yield identified
            if request.work:
                yield request.take_work()

    def _identify_read(
        self, payload: Payload, document: "Document", request: ItemIdentifier
    ) -> Iterator[Event | list[Event] | Rejection | int]:
        """Identify the events of a body that the native module has read; the odd ones become its items."""
        assert self.native is not None
        plain, index = request.plain(self.native), 0
        while index < len(payload.items):
            events, request.bytes_left, odd = self.native.identify(document, plain, index, request.bytes_left)
            if events:
                yield events
            index += len(events)
            if odd is not None:
                if len(odd) > SMALL_BYTES:
                    yield len(odd)  # finding that it is odd was work as well
                payload.items[index] = item = read_document(odd)
                yield len(odd) + work_on_numbers()
                yield from self._identify_all([(index, item)], request)
                index += 1

    def _identify_each(
        self, payload: Payload, ownership: Ownership, requests: Sequence[ItemIdentifier]
    ) -> Iterator[Event | Rejection | int]:
        """Identify each item under its own source, and count all towards one limit."""
        bytes_left, growth = self.limits.request_bytes_max, Growth(self.limits.growth_bytes_max)
        for index, (item, share) in enumerate(zip(payload.items, ownership.shares, strict=True)):
            request, key_digest = requests[share], ownership.refused.get(index)
            request.bytes_left = bytes_left
            if index < len(payload.own_fields):
                request.merge(index, payload.own_fields[index], growth)
            try:
                try:
                    event = request.event_of(index, item)
                except ManyItemNumbersError as many:
                    yield from many.numbers.steps()
                    event = request.event_of(index, many.numbers.item)
                identified: Event | Rejection = event
                if key_digest is not None:
                    raise refusal_of_key(event, key_digest)
            except RefusedError as refusal:
                if key_digest is not None:
                    refusal.code, refusal.key_digest = RejectionCode.WRITE_KEY_INVALID, key_digest
                identified = yield from request.rejection_in_steps(index, item, refusal)
            bytes_left = request.bytes_left
            yield identified
            if request.work:
                yield request.take_work()
        if (fields := growth.left_out()) is not None:
            yield requests[0].rejection_of(len(payload.items), fields, RefusedError(fields.reason))


def _store_shared(payload: Payload) -> Generator[int, None, set[int]]:
    """
    Put what is stored in the place of each Number of the batch-level fields.

    Yields the work of each step, and of writing them; returns each object with a null one, by `id`.
    """
    lossy_fields: set[int] = set()
    for fields in {id(each): each for each in (payload.shared, *payload.own_fields) if each}.values():
        merged = [fields[name] for name in SHARED_FIELDS if name in fields]
        if not merged:
            continue
        reading = yield from store_in_steps(merged)
        if reading.is_lossy:
            lossy_fields.add(id(fields))
        if reading.work > STEP_BYTES:
            yield reading.work
    return lossy_fields
