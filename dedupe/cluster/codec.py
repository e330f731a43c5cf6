"""
Commits, entries and sessions in messages between workers, as plain values. Pure.

Fields of later versions come last, and earlier versions ignore them.
"""

from collections.abc import Sequence
from typing import Any

from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.sessions import SessionKey, SessionState
from dedupe.model.identity import SOURCE_HASH_BYTES
from dedupe.model.types import Entry, Progress, Session

COMMITTED = "committed"
"""Kind of a notification: a commit, for the lane's follower."""

FIND = "find"
"""Kind of a request: the entry of an event key."""

SESSION = "session"
"""Kind of a request: the state of a client session."""

SESSIONS = "sessions"
"""Kind of a request: the states of all sessions of a client."""

APPENDS = "appends"
"""Kind of a request: whether a lane's leader answers large requests of the asked worker."""

STANDBY = "standby"
"""Kind of a request: how long a leader takes to answer the asked worker, if that could take lanes over."""

KEY_BYTES, FINGERPRINT_BYTES = 16, 8


def encode_committed(lane: int, committed: Committed) -> list[Any]:
    """Encode a commit, about 24 bytes an event."""
    return [
        lane,
        committed.first_seq,
        committed.base,
        committed.timestamp_ms,
        list(committed.after),
        b"".join(committed.keys),
        b"".join(committed.fingerprints),
        list(committed.secondary_keys),
        [session and _encode_session(session) for session in committed.sessions],
        list(committed.source_hashes),
        [list(keys) for keys in committed.evicted],
    ]


def decode_committed(fields: Any) -> tuple[int, Committed]:
    """Decode a lane's number and its commit. Raises ValueError, TypeError."""
    lane, first_seq, base, timestamp_ms, after, keys, fingerprints, secondary_keys, sessions, *later = fields
    source_hashes, evicted = [*later, (), ()][:2]  # an earlier version has none
    if not _are_counts(lane, first_seq, base, timestamp_ms, bits=63):
        raise ValueError("not a commit")
    committed = Committed(
        first_seq,
        base,
        timestamp_ms,
        LastRecord._make(after[: len(LastRecord._fields)]),
        _cut(keys, KEY_BYTES),
        _cut(fingerprints, FINGERPRINT_BYTES),
        [secondary_key and _sized(secondary_key, KEY_BYTES) for secondary_key in secondary_keys],
        [session and _decode_session(session) for session in sessions],
        [_sized(source_hash, SOURCE_HASH_BYTES) for source_hash in source_hashes],
        [[_sized(key, 2 * KEY_BYTES) for key in keys] for keys in evicted],
    )
    count = len(committed.keys)
    if not count or not {len(column) for column in committed[5:]} <= {count, 0}:
        raise ValueError("not a commit")
    return lane, committed


def encode_entry(entry: Entry | None) -> list[Any] | None:
    return entry and list(entry)


def decode_entry(fields: Any) -> Entry | None:
    """Decode an entry. Raises TypeError."""
    return fields and Entry(*fields[: len(Entry._fields)])


def encode_state(state: SessionState | None) -> list[Any] | None:
    return state and [state.watermark, _bytes_of(state.above), *state[2:]]


def decode_state(fields: Any) -> SessionState | None:
    """Decode a session's state. Raises ValueError, TypeError."""
    if fields is None:
        return None
    watermark, above, *rest = fields[: len(SessionState._fields)]
    return SessionState(watermark, int.from_bytes(above, "big"), *rest)


def encode_rows(rows: Sequence[tuple[SessionKey, SessionState]]) -> list[Any]:
    return [[key, encode_state(state)] for key, state in rows]


def decode_rows(fields: Any) -> list[tuple[SessionKey, SessionState]]:
    """Decode the sessions of a client. Raises ValueError, TypeError."""
    rows = [(key, decode_state(state)) for key, state, *_ in fields]
    return [(key, state) for key, state in rows if state is not None]


def _encode_session(session: Session) -> list[Any]:
    before = session.before
    return [*session[:-1], before and [before.watermark, _bytes_of(before.above)]]


def _decode_session(fields: Sequence[Any]) -> Session:
    client_hash, session_hash, *numbers, before = fields[: len(Session._fields)]
    progress = before and Progress(before[0], int.from_bytes(before[1], "big"))
    if not _are_counts(*numbers) or (progress is not None and not _are_counts(progress.watermark)):
        raise ValueError("not a session")
    return Session._make(
        (_sized(client_hash, KEY_BYTES), _sized(session_hash, KEY_BYTES), *numbers, progress)
    )


def _cut(joined: bytes, size: int) -> list[bytes]:
    if len(joined) % size:
        raise ValueError("not a whole number of values")
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _sized(value: Any, size: int) -> bytes:
    if type(value) is not bytes or len(value) != size:
        raise ValueError(f"not {size} bytes")
    return value


def _are_counts(*values: Any, bits: int = 64) -> bool:
    return all(type(value) is int and 0 <= value < 1 << bits for value in values)


def _bytes_of(above: int) -> bytes:
    """Return the bitmap as bytes: msgpack has no integers of 512 bits."""
    return above.to_bytes((above.bit_length() + 7) // 8, "big")
