"""
Warnings in answers of development: events that are stored as sent, and are probably wrong.

They depend only on the request, so answers to retries have the same bytes. They name an event by its index.
"""

from collections.abc import Iterator, Sequence

from app.ingest.identified import Arrival, Dialect
from app.ingest.routes.paths import TYPES

ADVICE_MAX = 20
"""The limit of one answer."""

NO_ID = "it has no messageId: a retry of the request would be stored again (or send an Idempotency-Key)"
UNKNOWN_TYPE = f"its type is none of {', '.join(TYPES)}"
NO_NAME = "it is a track without the name of its event, in `event`"


def advice_on(items: Sequence[object], arrival: Arrival) -> list[dict[str, object]]:
    """Return the warnings on a request's items, in their order."""
    warnings: list[dict[str, object]] = []
    if arrival.dialect is not Dialect.EVENTS:
        return warnings
    for index, item in enumerate(items):
        if type(item) is dict and not _is_complete(item):
            warnings += [{"index": index, "message": message} for message in _messages(item, arrival)]
        if len(warnings) >= ADVICE_MAX:
            break
    return warnings[:ADVICE_MAX]


def _is_complete(item: dict[str, object]) -> bool:
    """Whether an event has an id, a known type and a name, and so no warning."""
    return item.get("messageId") is not None and item.get("type") in TYPES and bool(item.get("event"))


def _messages(item: dict[str, object], arrival: Arrival) -> Iterator[str]:
    event_type = item.get("type")
    if item.get("messageId") is None and arrival.idempotency_key is None and arrival.session is None:
        yield NO_ID
    if event_type is not None and event_type not in TYPES:
        yield UNKNOWN_TYPE
    if (arrival.default_type if event_type is None else event_type) == "track" and not item.get("event"):
        yield NO_NAME
