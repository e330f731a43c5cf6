"""
The native module: Rust that reads bodies and identifies plain events, as the Python code does.

The module is optional. What it does not take, a body or one event, the Python code does; both give the same
bytes, which `NativeModule` proves by examples before it is used.

routes.post_events -> **NativeModule.read** -> Identifier.identify -> Router.submit
"""

from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import orjson

from app.auth.write_keys import own_key
from app.http.fair_scheduler import YieldToOthers
from app.ingest.client_sessions import ClientSession
from app.ingest.event_limits import EventLimits
from app.ingest.identified import Arrival
from app.ingest.items import EVENT_FIELDS
from app.ingest.large_json import AT_ONCE_BYTES, SMALL_BYTES, JSONLimits
from app.ingest.message_ids import session_event_prefix
from app.ingest.payload import Expected, Payload
from app.ingest.record_values import REPLACED, RecordValues
from app.ingest.routes.paths import TYPES
from app.telemetry.native_use import NativeUse
from dedupe.model.identity import Identity
from dedupe.model.json_document import read_document
from dedupe.model.routing import partition_of
from dedupe.model.slots import PartitionMap
from dedupe.model.types import Event, Order, Session

if TYPE_CHECKING:
    from gateway_native import Document, PlainFields, Request

STEP_BYTES = 512 * 1024
"""The bytes of a body that are read at once, in 1 ms."""

WORK_BYTES = 192 * 1024
"""The work of one step of identifying, 1 ms."""

FIELDS_CACHED = 256


class NativeModule:
    """The module, as one deployment uses it."""

    def __init__(
        self,
        module: ModuleType | Any,
        identity: Identity,
        partition_map: PartitionMap,
        limits: EventLimits,
        *,
        gives_advice: bool = False,
    ) -> None:
        """
        Prepare what does not change between requests.

        Args:
            module: gateway_native, see app.ingest.native_module.
            identity: computes keys.
            partition_map: which partition an event of the clean topic has.
            limits: the limits of events.
            gives_advice: whether an event that needs advice is left to the Python code.
        """
        self._module = module
        self._identity = identity
        self._partition_map = partition_map
        self._event_bytes_max = limits.event_bytes_max
        self._deployment = module.Deployment(
            identity.secret, partition_map.modulus, limits.event_depth_max, Event, Session
        )
        self._types = [orjson.dumps(name) for name in TYPES] if gives_advice else []
        self._fields_of = lru_cache(FIELDS_CACHED)(self._fields)
        self.use = NativeUse(module.__version__, module.faults)

    async def read(
        self,
        body: bytes,
        limits: JSONLimits,
        yield_to_others: YieldToOthers,
        expected: Expected,
        *,
        needs_key: bool = False,
    ) -> Payload | None:
        """
        Return the events of a body that is plainly what its path is for; None: the Python code must read it.

        Args:
            body: inflated.
            limits: its bounds.
            yield_to_others: awaited before each piece of work.
            expected: what the path is for.
            needs_key: whether the body must have the write key at its top level.

        Raises:
            BodyMemoryFullError: there is no memory for what is read.
        """
        if len(body) > AT_ONCE_BYTES:
            self.use.other_bodies["large"] += 1
            return None
        document = await self._document_of(body, limits, yield_to_others)
        if document is None:
            self.use.other_bodies["unreadable"] += 1
            return None
        payload = None
        if len(document) <= limits.events_max and not document.is_nested:
            top = document.top()
            if len(top) <= SMALL_BYTES:
                payload = _payload_of(document, top, expected, needs_key=needs_key)
        if payload is None:
            self.use.other_bodies["form"] += 1
        return payload

    async def _document_of(
        self, body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers
    ) -> "Document | None":
        if len(body) > STEP_BYTES:
            limits.hold(len(body), len(body))
        document: Document = self._module.Document(self._deployment, body)
        is_read: bool | None = False
        while is_read is False:
            await yield_to_others(min(len(body), STEP_BYTES))
            is_read = document.read(STEP_BYTES)
        return document if is_read else None

    def request_of(
        self,
        arrival: Arrival,
        values: RecordValues,
        *,
        ignored: frozenset[str],
        changed_fields: frozenset[str],
        order: Order,
    ) -> "Request | None":
        """Return what the events of a request have in common; None if all of them are odd."""
        if arrival.fingerprints or arrival.stored_sessions or values.is_too_deep:
            return None
        session, source = arrival.session, arrival.source
        if session is not None and arrival.idempotency_key is not None:
            return None
        if session is None:
            prefix, fields = self._identity.message_prefix(source), None
        else:
            prefix = self._identity.sequence_prefix(session.client_hash, session.session_hash)
            fields = self._session_fields(source, session)
        request: Request = self._module.Request(
            self._fields_of(ignored, values.merging | changed_fields if changed_fields else values.merging),
            source,
            order,
            prefix,
            self._event_bytes_max,
            values.merged_bytes,
            values.ip_field,
            values.suffix,
            values.suffix_without_sent_at,
            fields,
        )
        return request

    def identify(
        self, document: "Document", request: "Request | None", start: int, bytes_left: int
    ) -> tuple[list[Event], int, bytes | None]:
        """
        Identify the events of a body from one index on: a step, at most up to the first odd one.

        Returns:
            The events; what they leave of `bytes_left`; and the JSON of the odd event behind them, if any.
        """
        found = None
        if request is not None:
            found = document.identify(request, start, bytes_left, WORK_BYTES)
        events, bytes_left, odd = found or ([], bytes_left, document.raw(start))
        if (table := self._partition_map.table) is not None:
            events = [event._replace(partition=table[event.partition]) for event in events]
        self.use.events += len(events)
        self.use.odd_events += odd is not None
        return events, bytes_left, odd

    def _fields(self, ignored: frozenset[str], odd: frozenset[str]) -> "PlainFields":
        names = [[name.encode() for name in sorted(each)] for each in (ignored, REPLACED, odd)]
        fields: PlainFields = self._module.PlainFields(*names, self._types)
        return fields

    def _session_fields(self, source: str, session: ClientSession) -> tuple[object, ...]:
        return (
            session.first_sequence,
            session.client_hash,
            session.session_hash,
            session.epoch,
            session.acknowledged_through,
            partition_of(session.client_hash, self._partition_map.modulus),
            session_event_prefix(source, session.client, session.session),
            self._identity.secondary_prefix(source, session.client_hash),
        )


def _payload_of(document: "Document", top: bytes, expected: Expected, *, needs_key: bool) -> Payload | None:
    items: list[object] = [None] * len(document)
    if document.shape == "array":
        is_plain = expected is Expected.EVENTS and not needs_key
        return Payload(items, None, {}, native=document) if is_plain else None
    fields = read_document(top)
    if type(fields) is not dict or (needs_key and not own_key(fields)):
        return None
    if document.shape == "batch":
        is_plain = expected is Expected.BATCH or (expected is Expected.EVENTS and "event" not in fields)
        return Payload(items, fields, fields, native=document) if is_plain else None
    is_plain = expected is not Expected.BATCH and not EVENT_FIELDS.isdisjoint(fields)
    return Payload(items, fields, {}, native=document) if is_plain else None
