"""
The key of an event, and the fingerprint of its content. Pure and frozen.

All gateway versions compute the same bytes: tests/unit/dedupe/model/test_golden_vectors.py has golden
vectors. A key depends on no timestamp, batch or body. It is a keyed hash with the operator's secret, so that
clients cannot produce collisions or skew partitions.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

import orjson

from dedupe.model.json_number import COMPARED, Form, Number, NumberReading
from dedupe.model.types import EventKey, Fingerprint

KeyOf: TypeAlias = Callable[[bytes], EventKey]

canonical_json: Callable[[Mapping[str, object]], bytes] = partial(orjson.dumps, option=orjson.OPT_SORT_KEYS)
"""Returns the canonical content of an event without fields to ignore. Raises as canonical_content."""

KEY_BYTES = 16
FINGERPRINT_BYTES = 8
SOURCE_HASH_BYTES = 8
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 64  # BLAKE2b accepts at most 64
MESSAGE_ID_BYTES_MAX = 255

_KIND_MESSAGE = b"m"
_KIND_SEQUENCE = b"s"
_KIND_GUARD = b"g"
_KIND_QUARANTINE = b"q"
_KIND_CLIENT = b"C"
_KIND_SESSION = b"S"
_KIND_SOURCE = b"source"
_KIND_CHECK = b"check"

SOURCES_CACHED = 4096  # hash states, about 0.5 KB each

_BLANK = (
    *range(0x09, 0x0E),
    *range(0x1C, 0x21),
    *(0x85, 0xA0, 0xAD, 0x034F, 0x061C, 0x115F, 0x1160, 0x1680, 0x17B4, 0x17B5),
    *range(0x180B, 0x1810),
    *range(0x2000, 0x2010),
    *range(0x2028, 0x2030),
    *range(0x205F, 0x2070),
    *(0x2800, 0x3000, 0x3164),
    *range(0xFE00, 0xFE10),
    *(0xFEFF, 0xFFA0),
    *range(0xE0000, 0xE0080),
)
BLANKS = "".join(map(chr, _BLANK))
"""The characters that show nothing: white space, zero-width and other formatting. A list of our own,
since Unicode's grows. A text of these alone identifies nothing."""

EQUAL_NUMBERS = "=numbers"
"""What the note of a log says, among ignored fields, of a rule by which equal numbers are equal: an older
gateway takes it for the name of a field that no event has."""

RETRY_FIELDS = frozenset({"sentAt", "receivedAt", "_metadata", "writeKey"})
"""Fields that SDKs change when they retry an event (`sentAt`; `_metadata.retryCount` of analytics.js), or
that name the sender."""


class Identity:
    """The keys of one deployment, which depend on its identity secret."""

    def __init__(self, secret: bytes) -> None:
        """`secret` has SECRET_BYTES_MIN to SECRET_BYTES_MAX bytes and is never logged."""
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise ValueError(f"identity secret must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")
        self.secret = secret
        self._base = lru_cache(SOURCES_CACHED)(self._hash_of)
        self._keys_of_source = lru_cache(SOURCES_CACHED)(self._keys)
        self.source_hash: Callable[[str], bytes] = lru_cache(SOURCES_CACHED)(self._source_hash)
        """Returns the 8 bytes that identify a source, to its clients and among the sessions of a lane."""

    @property
    def check_value(self) -> bytes:
        """16 bytes that differ between two secrets and reveal neither."""
        return self._hash_of(_KIND_CHECK).digest()

    def message_key(self, source: str, message_id: str) -> EventKey:
        """Return the key of an event with this message id, of which every byte counts."""
        return self.message_keys(source)(message_id.encode())

    def message_keys(self, source: str) -> KeyOf:
        """Return `message_key` for one source, as a function of the id's bytes that has hashed the source."""
        return self._keys_of_source(_KIND_MESSAGE, source)

    def quarantine_key(self, source: str, message_id: str, fingerprint: Fingerprint) -> EventKey:
        """Return the key of a quarantined event; `message_id` is "" without a valid one."""
        return self._digest(_KIND_QUARANTINE, source, _prefixed(message_id.encode()) + fingerprint)

    def client_hash(self, source: str, client: str) -> bytes:
        """Return the 16 bytes that identify a client installation of a source."""
        return self._digest(_KIND_CLIENT, source, client.encode())

    def session_hash(self, source: str, client: str, session: str) -> bytes:
        """Return the 16 bytes that identify a session of a client of a source."""
        return self._digest(_KIND_SESSION, source, _prefixed(client.encode()) + session.encode())

    def sequence_key(self, client_hash: bytes, session_hash: bytes, sequence: int) -> EventKey:
        """Return the key of an event of a client session (sequence: u64)."""
        return self.sequence_keys(client_hash, session_hash)(sequence.to_bytes(8, "big"))

    def sequence_keys(self, client_hash: bytes, session_hash: bytes) -> KeyOf:
        """Return `sequence_key` for one session, as a function of a sequence's 8 bytes."""
        return self._keys(_KIND_SEQUENCE, "", client_hash + session_hash)

    def secondary_key(self, source: str, client_hash: bytes, message_id: str) -> EventKey:
        """
        Return the secondary key of a session's event that has a message id of its own.

        It includes the client, since all events of a client are in one lane.
        """
        return self.secondary_keys(source, client_hash)(message_id.encode())

    def secondary_keys(self, source: str, client_hash: bytes) -> KeyOf:
        """Return `secondary_key` for one client, as a function of the id's bytes."""
        return self._keys(_KIND_GUARD, source, client_hash)

    @staticmethod
    def message_prefix(source: str) -> bytes:
        """Return what is hashed, under the secret, before a message id."""
        return _prefix(_KIND_MESSAGE, source)

    @staticmethod
    def sequence_prefix(client_hash: bytes, session_hash: bytes) -> bytes:
        """Return what is hashed, under the secret, before a sequence's 8 bytes."""
        return _prefix(_KIND_SEQUENCE, "") + client_hash + session_hash

    @staticmethod
    def secondary_prefix(source: str, client_hash: bytes) -> bytes:
        """Return what is hashed, under the secret, before the message id of a client's event."""
        return _prefix(_KIND_GUARD, source) + client_hash

    def _digest(self, kind: bytes, source: str, rest: bytes) -> bytes:
        return self._keys_of_source(kind, source)(rest)

    def _keys(self, kind: bytes, source: str, begin: bytes = b"") -> KeyOf:
        """Return a function from the rest of the input to its key; the beginning is hashed once."""
        state = self._base(kind, source)
        if begin:
            state = state.copy()
            state.update(begin)
        copy = state.copy

        def key_of(rest: bytes) -> EventKey:
            state = copy()
            state.update(rest)
            return state.digest()

        return key_of

    def _source_hash(self, source: str) -> bytes:
        return self._hash_of(_KIND_SOURCE, source).digest()[:SOURCE_HASH_BYTES]

    def _hash_of(self, kind: bytes, source: str = "") -> "hashlib.blake2b":
        """Return the hash state after the length-prefixed kind and source."""
        return hashlib.blake2b(_prefix(kind, source), digest_size=KEY_BYTES, key=self.secret)


def is_blank(text: str) -> bool:
    """Whether a text is empty or shows nothing."""
    return not text.strip(BLANKS)


def take_message_id(item: dict[str, Any]) -> str | None:
    """
    Return the message id of an item, and make it text in the item; None without one, "" if it is invalid.

    An integer becomes its decimal text. Blank text is taken out of the item, since it is no id.
    """
    given = item.get("messageId")
    message_id = message_id_of(given)
    if message_id is None:
        if given is not None:
            del item["messageId"]
    elif message_id and message_id is not given:
        item["messageId"] = message_id
    return message_id


def message_id_of(given: object) -> str | None:
    """Return a message id as text, None for null and blank text, "" for what is no id."""
    if given is None or type(given) is str:
        return None if given is None or is_blank(given) else given
    number = Number(str(given)) if type(given) is int else given
    return number.decimal(MESSAGE_ID_BYTES_MAX) or "" if type(number) is Number else ""


def canonical_content(event: Mapping[str, object], ignore: frozenset[str] = RETRY_FIELDS) -> bytes:
    """
    Return the event's content as JSON bytes, which are equal for all retries.

    Equal numbers are equal, however they are spelled.

    Args:
        event: the event as sent, without batch-level fields.
        ignore: top-level fields that retries change.

    Raises:
        TypeError: the event is nested more than 254 deep, or more than LEVELS_MAX with a Number.
    """
    kept = {name: value for name, value in event.items() if name not in ignore}
    try:
        return canonical_json(kept)
    except TypeError:
        if NumberReading(kept).all().is_too_deep:
            raise
        return json_with_numbers(kept, COMPARED)


def json_with_numbers(document: Mapping[str, object], form: Callable[[Number], Form]) -> bytes:
    """Return what canonical_json is of a document with this form of its Numbers, which are read."""
    return orjson.dumps(document, default=form, option=orjson.OPT_SORT_KEYS)


_begun = hashlib.blake2b(digest_size=FINGERPRINT_BYTES).copy


def fingerprint_of(content: bytes) -> Fingerprint:
    """Return 8 bytes that differ between two contents of one key, except with probability 2**-64."""
    state = _begun()
    state.update(content)
    return state.digest()


def _prefix(kind: bytes, source: str) -> bytes:
    return _prefixed(kind) + _prefixed(source.encode())


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
