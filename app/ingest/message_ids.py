"""
The KSUIDs that the gateway assigns to events without a message id. Pure, frozen.

With an Idempotency-Key the id depends only on source, key and index, not on the event's content, so a retry
of the request has the same ids; tests/unit/ingest/test_identify.py has golden vectors. Without one the id is
new, and the receipt has `idempotent: false`: a retry would be stored again.
"""

import hashlib
from collections.abc import Callable

KSUID_EPOCH_S = 1_400_000_000
KSUID_SECONDS_MAX = 2**32 - 1
KSUID_BYTES = 20
PAYLOAD_BYTES = 16
_SEQUENCE_BYTES = 8

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_FIVE = 62**5


def fresh_id(received_ms: int, payload: bytes) -> str:
    """Return a KSUID of arrival time and 16 random bytes; a time that it cannot express is 0."""
    since_epoch = received_ms // 1000 - KSUID_EPOCH_S
    if not 0 <= since_epoch <= KSUID_SECONDS_MAX:
        since_epoch = 0
    return _text_of(since_epoch.to_bytes(KSUID_BYTES - PAYLOAD_BYTES, "big") + payload)


def given_session(source: str, client: str, idempotency_key: bytes) -> str:
    """Return the KSUID of a new session by its Idempotency-Key; the same for retries."""
    return _hashed(b"session", source.encode(), client.encode(), idempotency_key)


def session_event_ids(source: str, client: str, session: str) -> Callable[[int], str]:
    """
    Return a function from the sequence (u64) of an event of a client session to its KSUID.

    Args:
        source: the source of the write key.
        client: the installation, 1 to 100 bytes.
        session: a KSUID.
    """
    prefix = session_event_prefix(source, client, session)
    copy = hashlib.blake2b(prefix, digest_size=KSUID_BYTES).copy

    def id_of(sequence: int) -> str:
        state = copy()
        state.update(sequence.to_bytes(_SEQUENCE_BYTES, "big"))
        return _text_of(state.digest())

    return id_of


def session_event_prefix(source: str, client: str, session: str) -> bytes:
    """Return what is hashed before the sequence's 8 bytes."""
    parts = (b"sequence", source.encode(), client.encode(), session.encode())
    return b"".join(map(_framed, parts)) + _SEQUENCE_BYTES.to_bytes(4, "big")


def derived_id(source: str, idempotency_key: bytes, index: int) -> str:
    """
    Return the KSUID of an event by its request's Idempotency-Key.

    It is a hash, its time part included: an SDK may change the event's timestamp at each retry.

    Args:
        source: the source of the write key.
        idempotency_key: the header's bytes, 1 to 255.
        index: the event's index in the request, from 0.
    """
    return _hashed(source.encode(), idempotency_key, index.to_bytes(4, "big"))


def _hashed(*parts: bytes) -> str:
    """Return the KSUID of these parts; uses differ in the number of parts, or in the first one."""
    return _text_of(_hasher(*parts).digest())


def _hasher(*parts: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(b"".join(map(_framed, parts)), digest_size=KSUID_BYTES)


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _text_of(ksuid: bytes) -> str:
    """
    Return the text form of a KSUID's 20 bytes: 27 digits in base 62.

    It divides by 62**5, below 2**30, one digit of Python's integers, which is fast.
    """
    rest, e = divmod(int.from_bytes(ksuid, "big"), _FIVE)
    rest, d = divmod(rest, _FIVE)
    rest, c = divmod(rest, _FIVE)
    rest, b = divmod(rest, _FIVE)
    first, a = divmod(rest, _FIVE)
    return (
        f"{_PAIRS[first]}{_PAIRS[a // 62**3]}{_PAIRS[a // 62 % 62**2]}{_DIGITS[a % 62]}"
        f"{_PAIRS[b // 62**3]}{_PAIRS[b // 62 % 62**2]}{_DIGITS[b % 62]}"
        f"{_PAIRS[c // 62**3]}{_PAIRS[c // 62 % 62**2]}{_DIGITS[c % 62]}"
        f"{_PAIRS[d // 62**3]}{_PAIRS[d // 62 % 62**2]}{_DIGITS[d % 62]}"
        f"{_PAIRS[e // 62**3]}{_PAIRS[e // 62 % 62**2]}{_DIGITS[e % 62]}"
    )
