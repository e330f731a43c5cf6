"""
Identifies CloudEvents: the value of a record is the event in CloudEvents' JSON format, as it was sent.

Identifier.identify -> **CloudEventIdentifier.event_of**
"""

from collections.abc import Iterator
from typing import Any

from app.ingest.identified import RefusedError, unpacked
from app.ingest.item_identifier import ItemIdentifier
from app.ingest.record_values import WRITE_KEY, is_deeper_record
from dedupe.decide.rejection import RejectionCode
from dedupe.model.cloudevent import compared_form, id_of_cloudevent
from dedupe.model.identity import canonical_content, fingerprint_of, message_id_of
from dedupe.model.record import FLAG_CLOUDEVENT
from dedupe.model.types import Event, Fingerprint

TRACING = frozenset({"traceparent", "tracestate"})
"""Extension attributes that a sender may set anew at each try, so they are not content."""


class CloudEventIdentifier(ItemIdentifier):
    """Identifies the CloudEvents of one request, one by one; batch-level fields and sessions do not exist."""

    replaced = frozenset({WRITE_KEY})
    flags = FLAG_CLOUDEVENT
    retry_fields = TRACING

    def event_of(self, index: int, item: object) -> Event:
        """Return an item as an event of the clean topic. Raises RefusedError."""
        if type(item) is not dict:
            item, self.work = unpacked(item)
        event_id = item.get("id")
        if type(event_id) is not str and (number := message_id_of(event_id)):
            item["id"] = number
        message_id = id_of_cloudevent(item)
        try:
            content, retried = self._content_of(index, item, self._ignored)
        except TypeError as err:
            raise RefusedError(RejectionCode.EVENT_TOO_DEEP) from err
        self._count(content, retried)
        value = b"%b,%b" % (content[:-1], retried[1:]) if retried else memoryview(content).tobytes()
        brackets = len(value) - len(value.replace(b"{", b"").replace(b"[", b""))
        if brackets > self._depth_max and is_deeper_record(item, value, self._depth_max):
            raise RefusedError(RejectionCode.EVENT_TOO_DEEP)
        if message_id is None:
            raise RefusedError(RejectionCode.CLOUDEVENT_INVALID, value)
        fingerprint, earlier = self._compared(index, item, self._ignored, fingerprint_of(content))
        key = self._key_of(message_id.encode())
        partition = self._partition_of(key)
        return Event(
            key,
            partition,
            fingerprint,
            self._arrival.source,
            message_id,
            value,
            FLAG_CLOUDEVENT,
            earlier_fingerprints=earlier,
        )

    def _compared(
        self, index: int, item: dict[str, Any], ignored: frozenset[str], fingerprint: Fingerprint
    ) -> tuple[Fingerprint, tuple[Fingerprint, ...]]:
        compared = item if self._fingerprints or self.numbers is not None else compared_form(item)
        if compared is not item:
            fingerprint = fingerprint_of(canonical_content(compared, ignored))
        return super()._compared(index, compared, ignored, fingerprint)

    def _fingerprints_of(self, item: dict[str, Any], ignored: frozenset[str]) -> Iterator[Fingerprint]:
        return super()._fingerprints_of(compared_form(item), ignored)

    def _message_id_of(self, item: dict[str, Any]) -> tuple[str | None, frozenset[str]]:
        return id_of_cloudevent(item), self._ignored
