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
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from dedupe.model.errors import NotAppendedError
from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.inherited import place_of
from dedupe.model.json_document import dumps_to_keep
from dedupe.model.record import FLAG_CLOUDEVENT, FLAG_PIECE
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, EventKey, Fingerprint, Offset, Topic

PIECE_BYTES = 192 * 1024
"""The bytes of each piece but the last. The same for ever: pieces of two tries must be equal."""

PIECE_BYTES_MIN = PIECE_BYTES >> 7
"""The smallest: a topic that refuses a larger piece gets pieces of half the size, down to this one."""

HEAD_BYTES_MAX = 512
"""The limit of what a record's value has besides the event's bytes."""

RAW = b'{"raw":true,'
"""The beginning of a value whose event is not a part of its JSON."""

_PIECE_NUMBER_BYTES = 4

HEAD_FIELDS = ("reason", "length", "sha256", "position", "json")
FURTHER_FIELDS = ("key_sha256", "fingerprint", "original")
"""The fields before raw bytes that are those of the whole, and those that only some events have."""

WHOLE_FIELDS = ("sha256", "key_sha256", "pieces")
"""Besides its source and its id, what the pieces of one event have in common, and no other record."""

_CONTENT = re.compile(rb',"(event|head)":')
"""The beginning of the last field of a value with an event; nothing before it can match."""


class Content(NamedTuple):
    """What a record of the quarantine topic says of its event, and the event or a piece of it."""

    head: Mapping[str, Any]
    content: bytes


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
        digest = hashlib.sha256(content).hexdigest()
        own_facts = own_key.facts() if own_key else {}
        if is_json and len(content) <= self.whole_bytes_max:
            value = _with_event(content, str(reason), digest, {"position": position, **own_facts})
        else:
            head = {"reason": str(reason), "length": len(content), "sha256": digest, "position": position}
            head["json"] = is_json
            if len(content) > self.whole_bytes_max:
                return tuple(self._pieces_of(source, message_id, head | own_facts, content, PIECE_BYTES))
            value = RAW + orjson.dumps(head | {"piece": 0, "pieces": 1}, option=orjson.OPT_APPEND_NEWLINE)[1:]
            value += content
        return (self._event(source, message_id, fingerprint, value, str(reason)),)

    def refused(self, event: Event, reason: str, original: Offset | None) -> tuple[Event, ...]:
        """
        Return the quarantine events of an event of the clean topic that its lane has refused.

        Args:
            event: the event.
            reason: a RejectionCode.
            original: of a conflict the offset of the stored event, in the lane of the event's partition.
        """
        if original is None or original < 0 or len(event.value) > self.whole_bytes_max:
            events = self.events(
                source=event.source,
                message_id=event.message_id,
                fingerprint=event.fingerprint,
                content=event.value,
                reason=reason,
            )
            return tuple(in_dialect(events, event.flags))
        facts = {"original": place_of(event.partition, original)}
        value = _with_event(event.value, str(reason), hashlib.sha256(event.value).hexdigest(), facts)
        flags = event.flags & FLAG_CLOUDEVENT
        return (self._event(event.source, event.message_id, event.fingerprint, value, str(reason), flags),)

    def in_smaller_pieces(self, events: Sequence[Event], refused: Collection[EventKey]) -> list[Event]:
        """
        Return all pieces of each event of which the topic has refused a record for its size.

        They are of the largest size below that of the largest refused one, the same at every try. Pieces of
        an earlier size that are stored already are of no use then.

        Args:
            events: quarantine events of one request, with all pieces of each whole.
            refused: the keys of some of them.

        Raises:
            NotAppendedError: there is no smaller size.
        """
        wholes: dict[tuple[object, ...], list[tuple[Event, Content]]] = {}
        for event in events:
            content = content_of(event.value)
            whole = (event.source, event.message_id, event.reason, *map(content.head.get, WHOLE_FIELDS))
            wholes.setdefault(whole, []).append((event, content))
        pieces: list[Event] = []
        for parts in wholes.values():
            if not any(event.key in refused for event, _ in parts):
                continue
            largest = max(len(content.content) for event, content in parts if event.key in refused)
            piece_bytes = PIECE_BYTES
            while piece_bytes >= largest:
                piece_bytes //= 2
            if piece_bytes < PIECE_BYTES_MIN:
                raise NotAppendedError(f"topic {self.topic.name} takes no record of {largest} bytes")
            parts.sort(key=lambda part: part[1].head.get("piece", 0))
            event, content = parts[0]
            head = {"json": True, "position": None, **content.head}
            whole_content = b"".join(part.content for _, part in parts)
            of_whole = self._pieces_of(event.source, event.message_id, head, whole_content, piece_bytes)
            pieces += in_dialect(of_whole, event.flags)
        return pieces

    def _pieces_of(
        self, source: str, message_id: str, head: Mapping[str, Any], content: bytes, piece_bytes: int
    ) -> Iterator[Event]:
        """Yield the pieces of a content; `head` are the facts of the whole."""
        digest = bytes.fromhex(head["sha256"]) + bytes.fromhex(head.get("key_sha256", ""))
        count = -(-len(content) // piece_bytes)
        view = memoryview(content)
        for number in range(count):
            line = orjson.dumps(
                {name: head[name] for name in HEAD_FIELDS}
                | {"piece": number, "pieces": count}
                | {name: head[name] for name in FURTHER_FIELDS if name in head},
                option=orjson.OPT_APPEND_NEWLINE,
            )
            yield self._event(
                source,
                message_id,
                piece_fingerprint(digest, number, count),
                RAW + line[1:] + view[number * piece_bytes : (number + 1) * piece_bytes],
                head["reason"],
                FLAG_PIECE if number else 0,
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


def in_dialect(events: Iterable[Event], flags: int) -> Iterable[Event]:
    """Return quarantine events with the dialect of the event that they keep, which has these flags."""
    if not flags & FLAG_CLOUDEVENT:
        return events
    return [event._replace(flags=event.flags | FLAG_CLOUDEVENT) for event in events]


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


def content_of(value: bytes) -> Content:
    """
    Return what a record's value says of its event, and its content, without parsing that.

    Raises ValueError: no gateway wrote it.
    """
    if value.startswith(RAW):
        end = value.index(b"\n", 0, HEAD_BYTES_MAX)
        head, content = orjson.loads(value[:end]), value[end + 1 :]
    else:
        begin = _CONTENT.search(value)
        if begin is None:
            raise ValueError("it has no event")
        head, content = orjson.loads(value[: begin.start()] + b"}"), value[begin.end() : -1]
    if not {"length", "sha256"} <= head.keys():
        raise ValueError("it has no length and hash")
    return Content(head, content)
