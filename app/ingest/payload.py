"""
What a request's body holds: its items, still unjudged, and what stands beside them.

Only the body as a whole can be wrong here; an item that is no event is refused by app.ingest.identify, so
that it does not take its batch with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.http import BatchMissingError, TooManyEventsError, Turn
from app.ingest.large_json import JSONLimits, Oversize, read_json


class Payload(NamedTuple):
    """The parsed body of one request."""

    items: Sequence[object]
    top: Mapping[str, Any] | None
    """The body's top level if it is an object: the batch, or the one event itself."""
    shared: Mapping[str, Any]
    """The batch object, whose fields belong to every item; empty if the items came without one."""

    def check_count(self, events_max: int) -> None:
        """Raise TooManyEventsError if there are more items than allowed."""
        if len(self.items) > events_max:
            raise TooManyEventsError(told=f"{len(self.items):,}, and at most {events_max:,} are allowed")


async def parse_batch(body: bytes, limits: JSONLimits, turn: Turn) -> Payload:
    """Return an object with a `batch` array. Raises BatchMissingError, and what read_json raises."""
    document = await read_json(body, limits, turn, has_items=True)
    if isinstance(document, dict) and isinstance(batch := document.get("batch"), list):
        return Payload(batch, document, document)
    raise BatchMissingError(told=_found_in(document))


async def parse_events(body: bytes, limits: JSONLimits, turn: Turn) -> Payload:
    """Return a batch, an array of events, or one event. Raises as parse_batch."""
    document = await read_json(body, limits, turn, has_items=True)
    if isinstance(document, list):
        return Payload(document, None, {})
    if isinstance(document, dict) and isinstance(batch := document.get("batch"), list):
        return Payload(batch, document, document)
    return _single(document)


async def parse_event(body: bytes, limits: JSONLimits, turn: Turn) -> Payload:
    """Return one event. Raises as parse_batch."""
    return _single(await read_json(body, limits, turn, has_items=False))


def _single(document: object) -> Payload:
    if isinstance(document, Oversize):
        return Payload([document], None, {})
    if isinstance(document, dict):
        return Payload([document], document, {})
    raise BatchMissingError(told=_found_in(document))


def _found_in(document: object) -> str:
    """Say what a body is that was to hold events, and where it belongs."""
    match document:
        case dict() if "batch" in document:
            return "it is an object whose batch is no array"
        case dict():
            return "it is an object without batch; single events go to /v1/events or a path of their type"
        case list():
            return "it is an array; these go to /v1/events"
        case _:
            return "it is neither an object nor an array"
