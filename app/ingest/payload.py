"""
The parsed body of a request: its unchecked items, and the batch object around them.

What an item is follows from the body alone, so a retry finds the same items. app.ingest.identify rejects an
item that is no event, so that the rest of its batch is taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from app.auth.write_keys import own_key
from app.ingest.items import EVENT_FIELDS, Fragment, Oversize, Packed

if TYPE_CHECKING:
    from gateway_native import Document

LOOKED_AT_MAX = 2_500
"""Items of an array, to tell whether it holds events."""


class Payload(NamedTuple):
    """The content of a body."""

    items: list[object]
    top: Mapping[str, Any] | None
    """The body's top level if it is an object: the batch, or the one event itself."""
    shared: Mapping[str, Any]
    """The batch object, whose fields belong to every item; empty without one."""
    own_fields: Sequence[Mapping[str, Any]] = ()
    """Where a body has several batches that differ, by item: the fields of its own, instead of `shared`."""
    native: "Document | None" = None
    """The events as the native module has read them; the items are None then, but for identified odd ones."""


class Expected(Enum):
    """What a path is for: it decides where the body itself does not tell."""

    BATCH = "a batch"
    EVENTS = "anything"
    EVENT = "one event"
    CLOUDEVENTS = "CloudEvents"


def common_fields(envelopes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields in which all envelopes that have them agree."""
    found: dict[str, Any] = {}
    differing: set[str] = set()
    for fields in envelopes:
        for name, value in fields.items():
            if found.setdefault(name, value) != value:
                differing.add(name)
    return {name: value for name, value in found.items() if name not in differing}


def with_key(item: object, fields: Mapping[str, Any]) -> object:
    """Return an item with the write key of its batch, unless it has its own."""
    write_key = own_key(fields)
    if not write_key:
        return item
    if isinstance(item, dict):
        item.setdefault("writeKey", write_key)
    elif isinstance(item, Packed | Oversize | Fragment):
        return item._replace(write_key=item.write_key or write_key)
    return item


def is_event(thing: object) -> bool:
    """Whether something is an event, where it could be something else."""
    if type(thing) is dict:
        return not EVENT_FIELDS.isdisjoint(thing)
    return thing.is_event if isinstance(thing, Packed) else isinstance(thing, Oversize | Fragment)


def holds_events(items: list[object]) -> bool:
    """Whether an event is among the first items of an array."""
    return any(map(is_event, items[:LOOKED_AT_MAX]))


def is_envelope(thing: object) -> TypeGuard[dict[str, Any]]:
    """Whether something within a batch is a batch of its own, and no event."""
    return (
        type(thing) is dict
        and type(batch := thing.get("batch")) is list
        and EVENT_FIELDS.isdisjoint(thing)
        and holds_events(batch)
    )


def is_wrapped(thing: object) -> bool:
    """Whether an item is a batch, at whatever level its events are."""
    return is_envelope(thing) or (
        type(thing) is dict
        and EVENT_FIELDS.isdisjoint(thing)
        and type(batch := thing.get("batch")) is list
        and any(type(each) is dict and type(each.get("batch")) is list for each in batch[:LOOKED_AT_MAX])
    )
