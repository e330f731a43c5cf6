"""
The records of a topic's routing topic, which says by what rules the topic is written. Pure and frozen.

A record is bound to its place by a MAC under a key of the identity secret: one of another cluster, of another
topic of that name or of another secret is refused, and so is one that no gateway wrote.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.types import Headers, LogRecord, NewRecord

HEADER_MAC = "gr"
"""The header of every record: a version byte, and the MAC."""

VERSION = 1
MAC_BYTES = 16
KEY_BYTES = 32
NOTE = "note"
"""The kind of record that this version knows; a later one may write others."""

_PURPOSE = b"routing"


class Place(NamedTuple):
    """Where a record belongs."""

    log_id: str
    topic_id: bytes  # of the topic whose rules it says; zeros where topics have no ids
    partition: int  # of the routing topic


class Note(NamedTuple):
    """A note about a partition of the topic, or of its quarantine."""

    name: str
    topic: str
    partition: int
    text: str
    once: bool = False  # it counts only if there is none of this name before it


def routing_topic_of(topic: str) -> str:
    """Return the name of a topic's routing topic."""
    return f"{topic}.routing"


def mac_key_of(identity: Identity) -> bytes:
    """Return the key of all MACs, from which the identity secret does not follow."""
    return hashlib.blake2b(key=identity.secret, person=_PURPOSE, digest_size=KEY_BYTES).digest()


def note_record(note: Note, place: Place, key: bytes, *, now_ms: int) -> NewRecord:
    """Return the record of a note."""
    fields = {"kind": NOTE, "v": VERSION, **note._asdict()}
    value = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    kind = NOTE.encode()
    return NewRecord(now_ms, kind, value, [(HEADER_MAC, bytes([VERSION]) + _mac(key, place, kind, value))])


def read_note(record: LogRecord, places: Sequence[Place], key: bytes) -> Note:
    """
    Return the note of a record that belongs to one of some places.

    Raises:
        IdentityMismatchError: it belongs elsewhere, no gateway wrote it, or a later version did.
    """
    sealed = _mac_in(record.headers)
    if sealed[:1] > bytes([VERSION]):
        raise IdentityMismatchError(f"{_where(record)} was written by a newer gateway: run that one")
    macs = (bytes([VERSION]) + _mac(key, place, record.key, record.value) for place in places)
    if not any(hmac.compare_digest(sealed, mac) for mac in macs):
        raise IdentityMismatchError(
            f"{_where(record)} was written under another GATEWAY_IDENTITY_SECRET, for another cluster or for "
            "another topic of this name; or no gateway wrote it"
        )
    fields = orjson.loads(record.value)
    if fields["kind"] != NOTE or fields["v"] > VERSION:
        raise IdentityMismatchError(f"{_where(record)} was written by a newer gateway: run that one")
    return Note(*(fields[name] for name in Note._fields))


class Notes:
    """What the notes of a routing topic say so far."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], dict[int, str]] = {}

    def add(self, note: Note) -> None:
        """Add the next note of the topic, in its order."""
        texts = self._texts.setdefault((note.name, note.topic), {})
        if not (note.once and note.partition in texts):
            texts[note.partition] = note.text

    def of(self, name: str, topic: str) -> dict[int, str]:
        """Return the notes of this name by partition."""
        return dict(self._texts.get((name, topic), {}))


def _mac(key: bytes, place: Place, kind: bytes, value: bytes) -> bytes:
    digest = hashlib.blake2b(key=key, person=_PURPOSE, digest_size=MAC_BYTES)
    for part in (place.log_id.encode(), place.topic_id, place.partition.to_bytes(4, "big"), kind, value):
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _mac_in(headers: Headers) -> bytes:
    return next((value or b"" for name, value in headers if name == HEADER_MAC), b"")


def _where(record: LogRecord) -> str:
    return f"the record at offset {record.offset} of the routing topic"
