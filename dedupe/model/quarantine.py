"""
Quarantine: the topic of events that cannot go into the clean one. Pure.

A rejected or conflicting event becomes an event of the quarantine topic. Its key there depends on source,
message id and fingerprint, so that its retries are stored once.

A record's value has one of two forms. An event that is JSON and fits into a record is a field of a JSON
object:

    {"reason":…,"truncated":false,"length":…,"sha256":…,"original":[0,17],"event":…}

Anything else is a line of JSON, and after it bytes as they were received: all of them, or one piece:

    {"raw":true,"reason":…,"length":…,"sha256":…,"position":…,"json":…,"piece":0,"pieces":1}⏎…

`length` and `sha256` are those of the whole; `original` is the partition and offset of the event that a
conflicting one conflicts with, `position` that of the first byte in its body, `key_sha256` the hash of an
unknown write key, and `fingerprint` that of its event as sent. A piece has a key of its own, by the hash of
the whole and its number: a retry after a crash adds the pieces that are missing.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.json_document import dumps_to_keep
from dedupe.model.record import FLAG_PIECE
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, Fingerprint, Offset, Topic

PIECE_BYTES = 192 * 1024
"""The bytes of each piece but the last. The same for ever: pieces of two tries must be equal."""

HEAD_BYTES_MAX = 512
"""The limit of what a record's value has besides the event's bytes."""

RAW = b'{"raw":true,'
"""The beginning of a value whose event is not a part of its JSON."""

_PIECE_NUMBER_BYTES = 4


class OwnKey(NamedTuple):
    """The write key of an event whose source is not known."""

    sha256: bytes
    fingerprint: Fingerprint
    """Of the event as sent, by which its retries are known once its source is; b"" for no valid event."""

    def facts(self) -> dict[str, str]:
        """Return it as fields of a record's value."""
        facts = {"key_sha256": self.sha256.hex()}
        return facts | {"fingerprint": self.fingerprint.hex()} if self.fingerprint else facts


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Builds events of the quarantine topic."""

    identity: Identity
    topic: Topic
    whole_bytes_max: int = PIECE_BYTES
    """The largest content of one record; a longer one is stored in pieces."""

    def events(
        self,
        *,
        source: str,
        message_id: str,
        fingerprint: Fingerprint,
        content: bytes,
        reason: str,
        position: int | None = None,
        is_json: bool = True,
        own_key: OwnKey | None = None,
    ) -> tuple[Event, ...]:
        """
        Return the quarantine events of a rejected or conflicting event: one, or its pieces in order.

        Args:
            source: its sender.
            message_id: "" without a valid one.
            fingerprint: of its content, or of its raw bytes without a valid id; pieces have their own.
            content: the event, any bytes.
            reason: a RejectionCode, or the reason of a stored record.
            position: the offset of the content in its body, None if it is of no use.
            is_json: whether the content is a JSON document; if not, it is stored as it is.
            own_key: the event's own write key, if its source is not known.
        """
        if len(content) > self.whole_bytes_max:
            return self._pieces(
                source, message_id, content, str(reason), position, is_json=is_json, own_key=own_key
            )
        digest = hashlib.sha256(content).hexdigest()
        if is_json:
            facts = {"position": position, **(own_key.facts() if own_key else {})}
            value = _with_event(content, str(reason), digest, facts)
        else:
            value = _head(str(reason), len(content), digest, position, is_json=False) + content
        return (self._event(source, message_id, fingerprint, value, str(reason)),)

    def refused(self, event: Event, reason: str, original: Offset | None) -> tuple[Event, ...]:
        """
        Return the quarantine events of an event of the clean topic that its lane has refused.

        Args:
            event: the event.
            reason: a RejectionCode.
            original: of a conflict the offset of the stored event, in the event's partition.
        """
        if original is None or original < 0 or len(event.value) > self.whole_bytes_max:
            return self.events(
                source=event.source,
                message_id=event.message_id,
                fingerprint=event.fingerprint,
                content=event.value,
                reason=reason,
            )
        facts = {"original": (event.partition, original)}
        value = _with_event(event.value, str(reason), hashlib.sha256(event.value).hexdigest(), facts)
        return (self._event(event.source, event.message_id, event.fingerprint, value, str(reason)),)

    def _pieces(
        self,
        source: str,
        message_id: str,
        content: bytes,
        reason: str,
        position: int | None,
        *,
        is_json: bool,
        own_key: OwnKey | None,
    ) -> tuple[Event, ...]:
        digest = hashlib.sha256(content)
        key_digest = own_key.sha256 if own_key else b""
        count = -(-len(content) // PIECE_BYTES)
        view = memoryview(content)
        return tuple(
            self._event(
                source,
                message_id,
                piece_fingerprint(digest.digest() + key_digest, number, count),
                b"".join(
                    (
                        _head(
                            reason,
                            len(content),
                            digest.hexdigest(),
                            position,
                            is_json=is_json,
                            piece=number,
                            pieces=count,
                            own_key=own_key,
                        ),
                        view[number * PIECE_BYTES : (number + 1) * PIECE_BYTES],
                    )
                ),
                reason,
                FLAG_PIECE if number else 0,
            )
            for number in range(count)
        )

    def _event(
        self,
        source: str,
        message_id: str,
        fingerprint: Fingerprint,
        value: bytes,
        reason: str,
        flags: int = 0,
    ) -> Event:
        key = self.identity.quarantine_key(source, message_id, fingerprint)
        return Event(
            key=key,
            partition=partition_of(key, self.topic.partitions),
            fingerprint=fingerprint,
            source=source,
            message_id=message_id,
            value=value,
            flags=flags,
            reason=reason,
        )


def piece_fingerprint(digest: bytes, number: int, count: int) -> Fingerprint:
    """Return the fingerprint of a piece: `digest` identifies the whole, `number` begins at 0."""
    return fingerprint_of(digest + b"".join(part.to_bytes(_PIECE_NUMBER_BYTES) for part in (number, count)))


def _with_event(content: bytes, reason: str, digest: str, facts: Mapping[str, object]) -> bytes:
    """Return a value with the event as its last field, and before it the facts that are known."""
    return dumps_to_keep(
        {"reason": reason, "truncated": False, "length": len(content), "sha256": digest}
        | {name: fact for name, fact in facts.items() if fact is not None}
        | {"event": orjson.Fragment(content)}
    )


def _head(
    reason: str,
    length: int,
    digest: str,
    position: int | None,
    *,
    is_json: bool,
    piece: int = 0,
    pieces: int = 1,
    own_key: OwnKey | None = None,
) -> bytes:
    """Return the line before raw bytes."""
    fields: dict[str, object] = {
        "raw": True,
        "reason": reason,
        "length": length,
        "sha256": digest,
        "position": position,
        "json": is_json,
        "piece": piece,
        "pieces": pieces,
    }
    if own_key is not None:
        fields |= own_key.facts()
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
