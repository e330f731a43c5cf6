"""
The key of an event, and the fingerprint of its content. Pure and frozen.

Two gateway versions must agree on every byte here: golden vectors stand in
tests/unit/dedupe/model/test_golden_vectors.py. No timestamp, no batch and no body enters a key; a key is
keyed with the operator's secret, so that clients cannot craft collisions or skew partitions.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TypeAlias

import orjson

from dedupe.model.types import EventKey, Fingerprint

KeyOf: TypeAlias = Callable[[bytes], EventKey]

canonical_json: Callable[[Mapping[str, object]], bytes] = partial(orjson.dumps, option=orjson.OPT_SORT_KEYS)
"""Returns the canonical content of an event that has no field to ignore. Raises as canonical_content."""

KEY_BYTES = 16
FINGERPRINT_BYTES = 8
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 64  # BLAKE2b takes at most 64
MESSAGE_ID_BYTES_MAX = 255

_KIND_MESSAGE = b"m"
_KIND_SEQUENCE = b"s"
_KIND_GUARD = b"g"
_KIND_QUARANTINE = b"q"
_KIND_CLIENT = b"C"
_KIND_SESSION = b"S"
_KIND_CHECK = b"check"

SOURCES_CACHED = 4096  # prepared hash states, about 0.5 KB each; a miss costs two microseconds

RETRY_FIELDS = frozenset({"sentAt", "receivedAt", "_metadata", "writeKey"})
"""Fields that SDKs change between tries of one event (measured with real SDKs: `sentAt` anew at
each try, `_metadata.retryCount` by analytics.js), or that name the sender, not the content."""


class Identity:
    """Keys of one deployment: everything that depends on its identity secret."""

    def __init__(self, secret: bytes) -> None:
        """`secret` has SECRET_BYTES_MIN to SECRET_BYTES_MAX bytes and is never logged."""
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise ValueError(f"identity secret must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")
        self._secret = secret
        self._base = lru_cache(SOURCES_CACHED)(self._hash_of)
        self._keys_of_source = lru_cache(SOURCES_CACHED)(self._keys)

    @property
    def check_value(self) -> bytes:
        """16 bytes that differ between two secrets and reveal neither."""
        return self._hash_of(_KIND_CHECK).digest()

    def message_key(self, source: str, message_id: str) -> EventKey:
        """Return the key of an event known by its message id: exact bytes, never trimmed or cut."""
        return self.message_keys(source)(message_id.encode())

    def message_keys(self, source: str) -> KeyOf:
        """Return what makes the keys of a source's message ids: `message_key` with the source hashed once."""
        return self._keys_of_source(_KIND_MESSAGE, source)

    def quarantine_key(self, source: str, message_id: str, fingerprint: Fingerprint) -> EventKey:
        """Return the key of a quarantined event; `message_id` is "" when it has no valid one."""
        return self._digest(_KIND_QUARANTINE, source, _prefixed(message_id.encode()) + fingerprint)

    def client_hash(self, source: str, client: str) -> bytes:
        """Return the 16 bytes that stand for one client installation of one source."""
        return self._digest(_KIND_CLIENT, source, client.encode())

    def session_hash(self, source: str, client: str, session: str) -> bytes:
        """Return the 16 bytes that stand for one session of one client of one source."""
        return self._digest(_KIND_SESSION, source, _prefixed(client.encode()) + session.encode())

    def sequence_key(self, client_hash: bytes, session_hash: bytes, sequence: int) -> EventKey:
        """Return the key of an event known by its place in a client session (sequence: u64)."""
        return self.sequence_keys(client_hash, session_hash)(sequence.to_bytes(8, "big"))

    def sequence_keys(self, client_hash: bytes, session_hash: bytes) -> KeyOf:
        """Return what makes the keys of a session's events, of a sequence's 8 bytes: see `sequence_key`."""
        return self._keys(_KIND_SEQUENCE, "", client_hash + session_hash)

    def secondary_key(self, source: str, client_hash: bytes, message_id: str) -> EventKey:
        """
        Return the key under which a session's event is known by its own message id, too.

        It holds for one client, whose events are all in one lane: the lane of an id alone is another.
        """
        return self.secondary_keys(source, client_hash)(message_id.encode())

    def secondary_keys(self, source: str, client_hash: bytes) -> KeyOf:
        """Return what makes the keys of `secondary_key` for one client's message ids."""
        return self._keys(_KIND_GUARD, source, client_hash)

    def _digest(self, kind: bytes, source: str, rest: bytes) -> bytes:
        return self._keys_of_source(kind, source)(rest)

    def _keys(self, kind: bytes, source: str, begin: bytes = b"") -> KeyOf:
        """Return a function from the rest of the input to its key; it hashes what comes before only once."""
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

    def _hash_of(self, kind: bytes, source: str = "") -> "hashlib.blake2b":
        """Return the hash state after the length-prefixed kind and source; the rest ends the input."""
        prefix = _prefixed(kind) + _prefixed(source.encode())
        return hashlib.blake2b(prefix, digest_size=KEY_BYTES, key=self._secret)


def canonical_content(event: Mapping[str, object], ignore: frozenset[str] = RETRY_FIELDS) -> bytes:
    """
    Return the event's content as JSON bytes that are equal for every try of it.

    Args:
        event: as the client sent it, before batch-level fields are merged in.
        ignore: top-level fields that retries change.

    Raises:
        TypeError: the event cannot be serialised (nested more than 254 deep).
    """
    kept = event
    if not ignore.isdisjoint(event):
        kept = {name: value for name, value in event.items() if name not in ignore}
    return canonical_json(kept)


def fingerprint_of(content: bytes) -> Fingerprint:
    """Return 8 bytes that differ between two contents of one key (1 in 2**64 collide)."""
    return hashlib.blake2b(content, digest_size=FINGERPRINT_BYTES).digest()


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
