"""
Parses the body of a request into its items.

What is plainly a batch, an array of events or one event is taken as such on every path, and one level of
wrapping is undone: text that holds JSON, and a list or a batch within a batch. Items that are wrapped more
than once stay as they are. An unwrapped event is identified as if it had been sent plainly. Only the body
as a whole can be wrong here.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import orjson

from app.http.errors import BatchMissingError, InvalidJSONError, RequestError
from app.http.fair_scheduler import YieldToOthers
from app.ingest.broken_json import is_nearly_batch
from app.ingest.event_limits import EVENT_WORK_BYTES
from app.ingest.items import EVENT_FIELDS, Fragment, Oversize, Packed
from app.ingest.json_problem import json_problem
from app.ingest.large_json import (
    AT_ONCE_BYTES,
    GROUP_BYTES,
    SMALL_BYTES,
    JSONLimits,
    fragments_of,
    is_cheap,
    read_in_pieces,
    read_large_json,
)
from app.ingest.payload import (
    LOOKED_AT_MAX,
    Expected,
    Payload,
    common_fields,
    holds_events,
    is_envelope,
    is_event,
    with_key,
)
from dedupe.decide.rejection import RejectionCode
from dedupe.model.json_document import read_document, work_on_numbers

Parse: TypeAlias = Callable[[bytes, JSONLimits, YieldToOthers], Coroutine[Any, Any, Payload]]
"""Returns the items of a body, inflated, by the rules of a path."""

OWN_FIELDS = frozenset({"batch", "firstSequence", "messageId"})
"""The fields of an envelope that have no meaning for the items of another."""

ITEM_BYTES_MIN = 2
"""A digit and a comma."""

LOOK_WORK_BYTES = 16
"""Work of one such look: as long as it takes to parse so many bytes."""

_OBJECT = frozenset({dict, Packed, Fragment})
_TEXT = re.compile(rb'(?:\xef\xbb\xbf){0,2}[ \t\r\n]{0,64}"')
_BEFORE_DOCUMENT = " \t\r\n\ufeff"


async def parse_batch(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """
    Return what a path for batches takes: there, every array `batch` is one.

    Raises:
        BatchMissingError: the body is another document.
        RequestError, BodyMemoryFullError: see read_json.
    """
    document = await read_json(body, limits, yield_to_others)
    if type(document) is dict and _are_plain(batch := document.get("batch")):
        return _several(batch, document, limits)
    return await _Unwrapping(Expected.BATCH, body, limits, yield_to_others).payload_of(document)


async def parse_events(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """Return what the native path takes: an object without `batch` is one event. Raises as parse_batch."""
    document = await read_json(body, limits, yield_to_others)
    if type(document) is dict:
        if "batch" not in document:
            return _one_event(document)
        if "event" not in document and _are_plain(batch := document["batch"]):
            return _several(batch, document, limits)
    elif _are_plain(document):
        return _several(document, None, limits)
    return await _Unwrapping(Expected.EVENTS, body, limits, yield_to_others).payload_of(document)


async def parse_event(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """Return what a path for single events takes: one, if in doubt. Raises as parse_batch."""
    document = await read_json(body, limits, yield_to_others)
    if type(document) is dict and "batch" not in document:
        return _one_event(document)
    return await _Unwrapping(Expected.EVENT, body, limits, yield_to_others).payload_of(document)


async def parse_cloudevents(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """Return what the path for CloudEvents takes: one, or an array of them. Raises as parse_batch."""
    document = await read_json(body, limits, yield_to_others)
    if type(document) is dict and "batch" not in document:
        return _one_event(document)
    if _are_plain(document):
        return _several(document, None, limits)
    return await _Unwrapping(Expected.CLOUDEVENTS, body, limits, yield_to_others).payload_of(document)


async def read_json(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> object:
    """
    Return the document of a body.

    Args:
        body: inflated.
        limits: its bounds.
        yield_to_others: awaited before each piece of work.

    Raises:
        InvalidJSONError: it is not JSON.
        BodyMemoryFullError: see read_large_json.
    """
    if len(body) > SMALL_BYTES:
        if not _TEXT.match(body):
            return await read_large_json(body, limits, yield_to_others)
        limits.hold(len(body), len(body))
    await yield_to_others(len(body))
    try:
        document = read_document(body) if len(body) <= AT_ONCE_BYTES else orjson.loads(body)
    except ValueError as err:
        raise InvalidJSONError(detail=json_problem(err, body)) from err
    if (work_bytes := work_on_numbers()) > GROUP_BYTES:
        await yield_to_others(work_bytes)
    if len(body) > ITEM_BYTES_MIN * limits.events_max and limits.has_too_many(document):
        return await read_in_pieces(body, limits, yield_to_others)
    return document


class _Unwrapping:
    """Finds the items of one document that is not simply what its path is for."""

    def __init__(
        self, expected: Expected, body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers
    ) -> None:
        self._expected = expected
        self._body = body
        self._limits = limits
        self._yield_to_others = yield_to_others

    async def payload_of(self, document: object) -> Payload:
        """Return the items of a document, unwrapped if need be. Raises as parse_batch."""
        if type(document) is str:
            inner = await self._within(document, is_sure=True)
            return self._taken(document if inner is None else inner)
        if type(document) is list:
            if len(document) == 1 and is_envelope(document[0]):
                return self._taken(document[0])
            if document and all(map(is_envelope, document)):
                return self._merged({}, document)
            return self._taken(await self._unwrapped(document))
        if type(document) is dict and "batch" in document and not self._is_named(document):
            return await self._around(document, document["batch"])
        return self._taken(document)

    async def _around(self, document: dict[str, Any], batch: object) -> Payload:
        """Return the items of an object with a `batch`."""
        if type(batch) is str:
            inner = await self._within(batch, is_sure=self._expected is Expected.BATCH)
            if type(inner) is list and (self._expected is Expected.BATCH or holds_events(inner)):
                return self._taken(document | {"batch": inner}, otherwise=document)
            return self._taken(document)
        if type(batch) is list and len(batch) == 1 and is_envelope(batch[0]):
            batch = batch[0]
        if is_envelope(batch):
            return self._taken(document | batch)
        if type(batch) is dict and is_event(batch) and document.get("type") is None:
            return self._taken(document | {"batch": [batch]})
        return await self._around_items(document, batch)

    async def _around_items(self, document: dict[str, Any], batch: object) -> Payload:
        if type(batch) is list and batch and all(map(is_envelope, batch)):
            return self._merged(document, batch)
        if type(batch) is list:
            return self._taken(document | {"batch": await self._unwrapped(batch)}, otherwise=document)
        return self._taken(document)

    def _merged(self, document: dict[str, Any], envelopes: Sequence[Mapping[str, Any]]) -> Payload:
        """Return one batch for several within another, which have no session fields then."""
        document = {name: value for name, value in document.items() if name != "batch"}
        fields = [
            document | {name: value for name, value in envelope.items() if name not in OWN_FIELDS}
            for envelope in envelopes
        ]
        common = common_fields(fields)
        items: list[object] = []
        own_fields: list[Mapping[str, Any]] = []
        for envelope, own in zip(envelopes, fields, strict=True):
            differs = len(own) > len(common)
            batch = envelope["batch"]
            items += [with_key(item, own) for item in batch] if differs else batch
            own_fields += [common | own if differs else common] * len(batch)
        payload = self._taken(common | {"batch": items})
        if all(own is common for own in own_fields):
            return payload
        return payload._replace(own_fields=own_fields)

    def _taken(self, document: object, *, otherwise: object = None) -> Payload:
        """Return the items of an unwrapped document; `otherwise`: what it was, if it is no batch."""
        if type(document) is list:
            return _several(document, None, self._limits)
        if type(document) is dict:
            batch = document.get("batch")
            if type(batch) is list and self._is_batch(document, batch):
                return _several(batch, document, self._limits)
        return self._single(document if otherwise is None else otherwise)

    def _is_batch(self, document: dict[str, Any], items: list[object]) -> bool:
        """Whether an object with an array `batch` is a batch, and not an event with a field of that name."""
        if self._expected is Expected.BATCH:
            return True
        if self._is_named(document):
            return False
        if self._expected is Expected.EVENTS or holds_events(items):
            return True
        return document.get("type") is None and _OBJECT.issuperset(map(type, items))

    def _is_named(self, document: dict[str, Any]) -> bool:
        """Whether an object is an event by its name, whatever else it has."""
        name = "specversion" if self._expected is Expected.CLOUDEVENTS else "event"
        return self._expected is not Expected.BATCH and document.get(name) is not None

    def _single(self, document: object) -> Payload:
        if type(document) is dict and type(batch := document.get("batch")) is list:
            document["batch"], is_whole = _parsed(batch)
            if not is_whole:
                return Payload([self._limits.unparsed(self._body, 0)], None, {})
        if type(document) is dict and (
            self._expected is not Expected.BATCH or ("batch" not in document and is_event(document))
        ):
            judged = self._limits.judged(document, self._body)
            return Payload([judged], document, {})
        if isinstance(document, Oversize | Fragment):
            return Payload([document], None, {})
        raise BatchMissingError(detail=_found_in(document))

    async def _within(self, text: str, *, is_sure: bool) -> list[object] | dict[str, Any] | None:
        """Return the array or object whose JSON a text is, else None; `is_sure`: raises as read_json."""
        if not text.lstrip(_BEFORE_DOCUMENT).startswith(("{", "[")):
            return None
        content = text.encode()
        limits = replace(self._limits, hold=partial(_hold_both, self._limits, len(content)))
        try:
            document = await read_json(content, limits, self._yield_to_others)
        except InvalidJSONError:
            return None
        except RequestError:
            if is_sure:
                raise
            return None
        return document if isinstance(document, list | dict) else None

    async def _unwrapped(self, items: list[object]) -> list[object]:
        """Return the items, with the events of each list of events, and of each text that is one's JSON."""
        if _OBJECT.issuperset(map(type, items)):
            return items
        found: list[object] = []
        work_bytes, events_max = 0, self._limits.events_max
        for item in items[:events_max]:
            work_bytes += _work_on(item)
            if work_bytes > GROUP_BYTES:
                await self._yield_to_others(work_bytes)
                work_bytes = 0
            if type(item) is list and holds_events(item):
                found += item
            else:
                found.append((_event_in(item) or item) if type(item) is str else item)
        return found + items[events_max:]


def _one_event(document: dict[str, Any]) -> Payload:
    """Return an object without `batch`. Raises BatchMissingError: its name is damaged."""
    if EVENT_FIELDS.isdisjoint(document) and any(
        type(items) is list and is_nearly_batch(name) and holds_events(items)
        for name, items in document.items()
    ):
        raise BatchMissingError(detail="the name of its batch is damaged")
    return Payload([document], document, {})


def _work_on(item: object) -> int:
    """Return what looking for events in an item is, as bytes of parsing."""
    if type(item) is str:
        return len(item) + EVENT_WORK_BYTES
    return LOOK_WORK_BYTES * min(len(item), LOOKED_AT_MAX) if type(item) is list else LOOK_WORK_BYTES


def _are_plain(items: object) -> TypeGuard[list[object]]:
    """Whether nothing in an array is wrapped; if in doubt it is."""
    return (
        type(items) is list
        and _OBJECT.issuperset(map(type, items))
        and (not items or "batch" not in items[0])
    )


def _event_in(text: str) -> dict[str, Any] | None:
    """Return the event whose JSON a text is."""
    if not text.lstrip(_BEFORE_DOCUMENT).startswith("{"):
        return None
    content = text.encode()
    if not is_cheap(content):
        return None
    try:
        event = read_document(content)
    except ValueError:
        return None
    return event if isinstance(event, dict) and is_event(event) else None


def _parsed(items: list[object]) -> tuple[list[object], bool]:
    """Return the items of a field `batch` that is no batch, parsed, and whether all of them could be."""
    found: list[object] = []
    for item in items:
        if not isinstance(item, Packed | Oversize | Fragment):
            found.append(item)
        elif not is_cheap(item.content):
            return items, False
        elif isinstance(item, Fragment) and item.reason == RejectionCode.TOO_MANY_EVENTS:
            beyond = read_document(item.content)  # the items beyond the limit
            assert isinstance(beyond, list)
            found += beyond
        else:
            found.append(read_document(item.content))
    return found, True


def _hold_both(limits: JSONLimits, text_bytes: int, body_bytes: int, more_bytes: int) -> None:
    """Charge what a document within a text takes besides the text."""
    limits.hold(body_bytes + text_bytes, more_bytes + text_bytes)


def _several(items: list[object], batch: dict[str, Any] | None, limits: JSONLimits) -> Payload:
    if len(items) > limits.events_max:
        items = items[: limits.events_max] + fragments_of(items[limits.events_max :])
    return Payload(items, batch, batch or {})


def _found_in(document: object) -> str:
    """Say what a body is that was to hold events."""
    match document:
        case dict() if "batch" in document:
            return "it is an object whose batch is no array"
        case dict():
            return "it is an object without batch, and no event: it has neither type nor event nor messageId"
        case _:
            return "it is neither an object nor an array"
