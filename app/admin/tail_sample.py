"""A sample of the live tail: one decided event, with the part of its content that identifies it."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

from dedupe.model.json_document import read_stored

VALUE_BYTES_MAX = 16 * 1024
"""The length of the longest event whose fields are shown."""

SAMPLE_BYTES = 300
"""The approximate size of a sample without its event."""


class Sample(NamedTuple):
    """The verdict on one event, or on a request whose events are unknown."""

    at_ms: int
    verdict: str
    code: str | None
    source: str | None
    message_id: str | None
    client: str | None
    request_id: str | None
    partition: int | None  # with the offset: the place of the event, or of its original
    offset: int | None
    sequence: int | None
    value: bytes | None
    is_wrapped: bool  # the value is that of a quarantine record
    key: bytes  # equal for equal events with equal content

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        texts = (self.source, self.message_id, self.client)
        return SAMPLE_BYTES + len(self.value or b"") + sum([len(text) for text in texts if text])


def document_of(sample: Sample, *, is_shown: bool = False) -> dict[str, Any]:
    """Return a sample as a document, with the whole event if `is_shown`."""
    event = event_in(sample)
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


def event_in(sample: Sample) -> dict[str, Any]:
    """Return the event's fields; empty if they are unknown."""
    if sample.value is None:
        return {}
    try:
        value = read_stored(sample.value)
    except ValueError:
        return {}
    if sample.is_wrapped and isinstance(value, dict):
        value = value.get("event")
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _age_s(event: dict[str, Any], at_ms: int) -> float | None:
    """Return the event's age by its own timestamp; None without a valid one."""
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
