"""
What workers tell one another of commits and sessions, as plain values that any encoding carries. Pure.

Fields that a later version adds stand behind those of the one before, which passes them over.
"""

from collections.abc import Sequence
from typing import Any

from dedupe.committed import Committed, LastRecord
from dedupe.sessions import SessionKey, SessionState
from dedupe.types import Entry, Progress, Session

STATUS = "status"
"""Kind of a message: what a worker tells of itself, see Status; None when it is down."""

COMMITTED = "committed"
"""Kind of a message: what a commit has added to a lane, for its follower."""

FIND = "find"
"""Kind of a question: where the event of a key is."""

SESSION = "session"
"""Kind of a question: what is known of a client session."""

SESSIONS = "sessions"
"""Kind of a question: what is known of all sessions of a client."""

KEY_BYTES, FINGERPRINT_BYTES = 16, 8


def told_committed(lane: int, committed: Committed) -> list[Any]:
    """Return it as plain values, about 24 bytes an event."""
    return [
        lane,
        committed.first_seq,
        committed.base,
        committed.timestamp_ms,
        list(committed.after),
        b"".join(committed.keys),
        b"".join(committed.fingerprints),
        list(committed.guards),
        [session and _told_session(session) for session in committed.sessions],
    ]


def heard_committed(told: Any) -> tuple[int, Committed]:
    """Read what `told_committed` wrote. Raises ValueError, TypeError."""
    lane, first_seq, base, timestamp_ms, after, keys, fingerprints, guards, sessions, *_ = told
    if not _are_counts(lane, first_seq, base, timestamp_ms, bits=63):
        raise ValueError("not what a commit has added")
    committed = Committed(
        first_seq,
        base,
        timestamp_ms,
        LastRecord._make(after[: len(LastRecord._fields)]),
        _cut(keys, KEY_BYTES),
        _cut(fingerprints, FINGERPRINT_BYTES),
        [guard and _sized(guard, KEY_BYTES) for guard in guards],
        [session and _heard_session(session) for session in sessions],
    )
    count = len(committed.keys)
    if not count or not {len(column) for column in committed[5:]} <= {count, 0}:
        raise ValueError("not what a commit has added")
    return lane, committed


def told_entry(entry: Entry | None) -> list[Any] | None:
    """Return it as plain values."""
    return entry and list(entry)


def heard_entry(told: Any) -> Entry | None:
    """Read what `told_entry` wrote. Raises TypeError."""
    return told and Entry(*told[: len(Entry._fields)])


def told_state(state: SessionState | None) -> list[Any] | None:
    """Return it as plain values."""
    return state and [state.watermark, _bytes_of(state.above), *state[2:]]


def heard_state(told: Any) -> SessionState | None:
    """Read what `told_state` wrote. Raises ValueError, TypeError."""
    if told is None:
        return None
    watermark, above, *rest = told[: len(SessionState._fields)]
    return SessionState(watermark, int.from_bytes(above, "big"), *rest)


def told_rows(rows: Sequence[tuple[SessionKey, SessionState]]) -> list[Any]:
    """Return them as plain values."""
    return [[key, told_state(state)] for key, state in rows]


def heard_rows(told: Any) -> list[tuple[SessionKey, SessionState]]:
    """Read what `told_rows` wrote. Raises ValueError, TypeError."""
    rows = [(key, heard_state(state)) for key, state, *_ in told]
    return [(key, state) for key, state in rows if state is not None]


def told_key(lane: int, key: bytes) -> list[Any]:
    """Return what is asked for."""
    return [lane, key]


def _told_session(session: Session) -> list[Any]:
    before = session.before
    return [*session[:-1], before and [before.watermark, _bytes_of(before.above)]]


def _heard_session(told: Sequence[Any]) -> Session:
    client_hash, session_hash, *numbers, before = told[: len(Session._fields)]
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
    """512 bits are more than an encoding has for a number."""
    return above.to_bytes((above.bit_length() + 7) // 8, "big")
