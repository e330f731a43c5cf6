"""One decided event as operators see it: no more of its content than identifies it."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

VALUE_BYTES_MAX = 16 * 1024
"""Of the longest event whose fields are shown; others are shown without."""

SAMPLE_BYTES = 300
"""About the memory of a sample besides its event."""


class Sample(NamedTuple):
    """The verdict on one event, or on a request whose events are not known."""

    at_ms: int
    verdict: str
    code: str | None
    source: str | None
    message_id: str | None
    client: str | None
    request_id: str | None
    partition: int | None  # with the offset: where the event is, or the original of a copy or conflict
    offset: int | None
    sequence: int | None
    value: bytes | None
    is_wrapped: bool  # the value is that of a quarantine record
    key: bytes  # the same for the same event with the same content

    @property
    def size_bytes(self) -> int:
        """About its memory."""
        texts = (self.source, self.message_id, self.client)
        return SAMPLE_BYTES + len(self.value or b"") + sum([len(text) for text in texts if text])


def document_of(sample: Sample, *, is_shown: bool = False) -> dict[str, Any]:
    """Return a sample as a document; with the whole event only if it is to be shown."""
    event = _event_in(sample)
    document: dict[str, Any] = {
        "time_ms": sample.at_ms,
        "verdict": sample.verdict,
        "code": sample.code,
        "source": sample.source,
        "message_id": sample.message_id,
        "type": _text(event.get("type")),
        "event": _text(event.get("event")),
        "client": sample.client,
        "sequence": sample.sequence,
        "partition": sample.partition,
        "offset": sample.offset,
        "age_seconds": _age_s(event, sample.at_ms),
        "request_id": sample.request_id,
    }
    return document | {"value": event or None} if is_shown else document


def _event_in(sample: Sample) -> dict[str, Any]:
    """Return the event's fields, as far as they are known."""
    if sample.value is None:
        return {}
    try:
        value = orjson.loads(sample.value)
    except ValueError:
        return {}
    if sample.is_wrapped and isinstance(value, dict):
        value = value.get("event")
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _age_s(event: dict[str, Any], at_ms: int) -> float | None:
    """Return how old the event is by its own timestamp; None without one that is a time."""
    text = event.get("originalTimestamp") or event.get("timestamp")
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text[:40])
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(at_ms / 1000 - time.timestamp(), 3)
