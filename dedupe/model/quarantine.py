"""
Quarantine: the topic of events that cannot go into the clean one. Pure.

A rejected or conflicting event becomes an event of the quarantine topic. Its key there depends on source,
message id and fingerprint, so that its retries are stored once.
"""

import hashlib
from dataclasses import dataclass

import orjson

from dedupe.model.identity import Identity
from dedupe.model.json_document import dumps_to_keep
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, Fingerprint, Topic

KEPT_BYTES_MAX = 64 * 1024
"""The limit of a quarantined event's content. Of a longer event the first bytes, length and hash are stored,
which suffice to identify the sender."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Builds events of the quarantine topic."""

    identity: Identity
    topic: Topic

    def event(
        self, *, source: str, message_id: str, fingerprint: Fingerprint, content: bytes, reason: str
    ) -> Event:
        """
        Return the quarantine event of a rejected or conflicting event.

        Args:
            source: its sender.
            message_id: "" without a valid one.
            fingerprint: of its content, or of its raw bytes without a valid id.
            content: the event as JSON bytes.
            reason: a RejectionCode, or the reason of a stored record.
        """
        key = self.identity.quarantine_key(source, message_id, fingerprint)
        return Event(
            key=key,
            partition=partition_of(key, self.topic.partitions),
            fingerprint=fingerprint,
            source=source,
            message_id=message_id,
            value=_wrapped(content, reason),
            reason=str(reason),
        )


def _wrapped(content: bytes, reason: str) -> bytes:
    """Return the quarantine record's value: JSON with the event, or with its first bytes."""
    is_truncated = len(content) > KEPT_BYTES_MAX
    fields: dict[str, object] = {
        "reason": reason,
        "truncated": is_truncated,
        "length": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    if is_truncated:
        fields["head"] = content[:KEPT_BYTES_MAX].decode(errors="replace")
    else:
        fields["event"] = orjson.Fragment(content)
    return dumps_to_keep(fields)
