"""
The parsed body of a request: its unchecked items, and the batch object around them.

Errors here concern the whole body. app.ingest.identify rejects single items that are no events.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.http.errors import BatchMissingError, InvalidJSONError, TooManyEventsError
from app.http.fair_scheduler import YieldToOthers
from app.ingest.json_problem import json_problem
from app.ingest.large_json import SMALL_BYTES, JSONLimits, Oversize, read_large_json
from dedupe.model.json_document import read_document


class Payload(NamedTuple):
    """The content of a body."""

    items: Sequence[object]
    top: Mapping[str, Any] | None
    """The body's top level if it is an object: the batch, or the one event itself."""
    shared: Mapping[str, Any]
    """The batch object, whose fields belong to every item; empty without one."""


async def parse_batch(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """
    Return an object with a `batch` array.

    Raises:
        BatchMissingError: the body is another document.
        TooManyEventsError: it has more items than allowed.
        RequestError, BodyMemoryFullError: see read_json.
    """
    document = await read_json(body, limits, yield_to_others, has_items=True)
    if isinstance(document, dict) and isinstance(batch := document.get("batch"), list):
        return _several(batch, document, limits)
    raise BatchMissingError(detail=_described(document))


async def parse_events(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """Return a batch, an array of events, or one event. Raises as parse_batch."""
    document = await read_json(body, limits, yield_to_others, has_items=True)
    if isinstance(document, list):
        return _several(document, None, limits)
    if isinstance(document, dict) and isinstance(batch := document.get("batch"), list):
        return _several(batch, document, limits)
    return _single(document)


async def parse_event(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """Return one event. Raises as parse_batch."""
    return _single(await read_json(body, limits, yield_to_others, has_items=False))


async def read_json(
    body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers, *, has_items: bool
) -> object:
    """
    Return the document of a body.

    Args:
        body: inflated.
        limits: its bounds.
        yield_to_others: awaited before each piece of work.
        has_items: whether an array, or a `batch` in an object, has events.

    Raises:
        InvalidJSONError: it is not JSON.
        BodyTooComplexError, TooManyEventsError, BodyMemoryFullError: see read_large_json.
    """
    if len(body) > SMALL_BYTES:
        return await read_large_json(body, limits, yield_to_others, has_items=has_items)
    await yield_to_others(len(body))
    try:
        return read_document(body)
    except ValueError as err:
        raise InvalidJSONError(detail=json_problem(err, body)) from err


def _several(items: list[object], batch: dict[str, Any] | None, limits: JSONLimits) -> Payload:
    if len(items) > limits.events_max:
        raise TooManyEventsError(detail=f"{len(items):,}, and at most {limits.events_max:,} are allowed")
    return Payload(items, batch, batch or {})


def _single(document: object) -> Payload:
    if isinstance(document, Oversize):
        return Payload([document], None, {})
    if isinstance(document, dict):
        return Payload([document], document, {})
    raise BatchMissingError(detail=_described(document))


def _described(document: object) -> str:
    """Describe a body without events, and its right path."""
    match document:
        case dict() if "batch" in document:
            return "it is an object whose batch is no array"
        case dict():
            return "it is an object without batch; single events go to /v1/events or a path of their type"
        case list():
            return "it is an array; these go to /v1/events"
        case _:
            return "it is neither an object nor an array"
