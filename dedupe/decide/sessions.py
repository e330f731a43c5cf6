"""
Client sessions: which sequences of a client are stored. Pure.

The state of a session is a function of the clean topic's records, so a rebuilt index has the same one. Its
size is fixed: a watermark, and one bit for each of the SEQUENCES_AHEAD_MAX sequences after it (requests may
arrive in another order).

The design follows RIFL (Lee et al., SOSP 2015): completion records, acknowledgements that free them, leases.
The epoch is that of Kafka's idempotent producer.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol, TypeAlias

from dedupe.model.types import Offset, Progress, Session

SessionKey: TypeAlias = bytes
"""Client hash and session hash, 32 bytes; the client's own row has NO_SESSION as its session."""

NO_SESSION = bytes(16)

SEQUENCES_AHEAD_MAX = 512
"""How far above the watermark a sequence may be."""

DAY_MS = 86_400_000

EVICTIONS_BESIDE_MAX = 256
"""The limit of evictions of an update, besides one for each changed row: a lower limit is reached in
steps."""

U64_MAX = 2**64 - 1


class SessionState(NamedTuple):
    """The state of one session."""

    watermark: int
    """Every sequence up to it is stored or acknowledged."""
    above: int
    """Bit i: sequence watermark + 1 + i is stored. Bit 0 is never set."""
    acknowledged_through: int
    epoch: int  # the newest; 0: none
    last_used_ms: int  # timestamp of its newest record
    last_offset: Offset  # of its newest record
    is_evicted: bool = False
    """No new sequence is accepted, and `above` is 0."""

    @property
    def highest(self) -> int:
        """The highest stored sequence."""
        return self.watermark + self.above.bit_length()

    def has(self, sequence: int) -> bool:
        """Whether a sequence is stored, or acknowledged."""
        ahead = sequence - self.watermark
        return ahead <= 0 or bool(self.above >> (ahead - 1) & 1)

    def missing(self) -> list[tuple[int, int]]:
        """Return the ranges of missing sequences below `highest`, first and last of each, ascending."""
        ranges, first = [], self.watermark + 1
        above = self.above
        while above:
            gap = (above & -above).bit_length() - 1
            if gap:
                ranges.append((first, first + gap - 1))
            above >>= gap
            stored = _ones(above)
            above >>= stored
            first += gap + stored
        return ranges


NEW_SESSION = SessionState(0, 0, 0, 0, 0, -1)
NOTHING_STORED = Progress(0, 0)


class SessionPolicy(NamedTuple):
    """The limits of a lane's sessions."""

    lease_ms: int
    """The life of a session after its last record. The log retains its records for `remembered_ms`."""
    sessions_max: int
    """The limit of live sessions, of which the least recently used are evicted, and of evicted ones."""
    expired_ms: int = DAY_MS
    """How much longer an expired session is remembered."""

    def is_expired(self, state: SessionState, now_ms: int) -> bool:
        """Whether the session accepts no new sequence."""
        return state.is_evicted or now_ms - state.last_used_ms > self.lease_ms

    def visible_state(self, state: SessionState | None, now_ms: int) -> SessionState | None:
        """Return the state for queries: an expired session is shown as evicted."""
        state = self.remembered(state, now_ms)
        return state and state._replace(is_evicted=self.is_expired(state, now_ms))

    def remembered(self, state: SessionState | None, now_ms: int) -> SessionState | None:
        """Return the state, or None if it is too old, even if it is still on disk."""
        if state is None or now_ms - state.last_used_ms > self.remembered_ms:
            return None
        return state

    @property
    def remembered_ms(self) -> int:
        """How long a session is remembered after its last record, and how far back a rebuild reads."""
        return self.lease_ms + self.expired_ms


class SessionCounts(NamedTuple):
    """The number of rows: one for each session, and one for each client that uses epochs."""

    live: int
    evicted: int
    since_ms: int = 0
    """The index has all sessions that were used after this time."""
    with_gaps: int = 0  # live sessions that lack a sequence below their highest


NO_SESSIONS = SessionCounts(0, 0)


class SessionChange(NamedTuple):
    """The change of one row; None: no row."""

    key: SessionKey
    before: SessionState | None
    after: SessionState | None


class SessionUpdate(NamedTuple):
    """The changes of an index update to its sessions, at most one for each row."""

    changes: Sequence[SessionChange]
    counts: SessionCounts  # afterwards


class SessionRecord(NamedTuple):
    """The session of a record of the clean topic."""

    offset: Offset
    timestamp_ms: int
    session: Session


class SessionRows(Protocol):
    """The sessions in a lane's index."""

    @property
    def session_counts(self) -> SessionCounts:
        """The number of rows. Cheap."""

    def sessions(self, keys: Sequence[SessionKey]) -> list[SessionState | None]:
        """Return each key's state or None; same order and length. Raises IndexCorruptError."""

    def oldest_sessions(self, count: int, *, evicted: bool) -> list[tuple[SessionKey, SessionState]]:
        """
        Return at most `count` of the live or of the evicted sessions, least recently used first.

        Raises IndexCorruptError.
        """

    def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """Return at most `count` rows of a client, in the order of their keys. Raises IndexCorruptError."""


def session_key(session: Session) -> SessionKey:
    """Return the key of an event's session."""
    return session.client_hash + session.session_hash


def client_key(session: Session) -> SessionKey:
    """Return the key of the client's own row, which has its newest epoch."""
    return session.client_hash + NO_SESSION


def keys_of(sessions: Iterable[Session]) -> list[SessionKey]:
    """Return the keys of all rows that decide these events, each once."""
    keys: dict[SessionKey, None] = {}
    for session in sessions:
        keys[session_key(session)] = None
        if session.epoch:
            keys[client_key(session)] = None
    return list(keys)


def with_record(state: SessionState | None, record: SessionRecord) -> SessionState:
    """
    Return the state after a record.

    The record has the session's progress before it, so a rebuild needs only the newest record. Without that
    progress, the sequence was at most SEQUENCES_AHEAD_MAX above the watermark. The first branch is a shortcut
    for the next sequence of a session without gaps.
    """
    offset, timestamp_ms, session = record
    _, _, sequence, epoch, acknowledged, before = session
    if (
        state is not None
        and sequence == state.watermark + 1
        and not state.above
        and acknowledged < sequence
        and (before is None or before == (state.watermark, 0))
    ):
        acknowledged = max(acknowledged, state.acknowledged_through)
        return SessionState(sequence, 0, acknowledged, max(epoch, state.epoch), timestamp_ms, offset)
    epoch = max(epoch, state.epoch if state else 0)
    if before is not None:
        state = (state or NEW_SESSION)._replace(watermark=before.watermark, above=before.above)
    state = with_acknowledgement(state, session, sequence - SEQUENCES_AHEAD_MAX)
    above = state.above
    if sequence > state.watermark:
        above |= 1 << (sequence - state.watermark - 1)
    watermark, above = _slid(state.watermark, above)
    return SessionState(watermark, above, state.acknowledged_through, epoch, timestamp_ms, offset)


def with_acknowledgement(
    state: SessionState | None, session: Session, watermark_min: int = 0
) -> SessionState:
    """Return the state with the event's acknowledgement, before the event."""
    if state is None:
        state = NEW_SESSION
    acknowledged = max(state.acknowledged_through, session.acknowledged_through)
    base = max(state.watermark, acknowledged, watermark_min)
    watermark, above = _slid(base, state.above >> (base - state.watermark))
    return state._replace(watermark=watermark, above=above, acknowledged_through=acknowledged)


def with_progress(state: SessionState | None, session: Session) -> Session:
    """Return the session for the record of a new event; `state` is the one before the event."""
    client_hash, session_hash, sequence, epoch, acknowledged, _ = session
    before = NOTHING_STORED
    if state is not None:
        acknowledged = max(state.acknowledged_through, acknowledged)
        before = Progress(state.watermark, state.above)
    # Not _replace, which is slower.
    return Session(client_hash, session_hash, sequence, epoch, acknowledged, before)


def with_epoch(state: SessionState | None, record: SessionRecord) -> SessionState:
    """Return the client's own row after a record."""
    offset, timestamp_ms, session = record
    epoch = max(session.epoch, state.epoch if state else 0)
    return SessionState(0, 0, 0, epoch, timestamp_ms, offset)


def session_update(
    rows: SessionRows, records: Sequence[SessionRecord], policy: SessionPolicy
) -> SessionUpdate | None:
    """
    Return the update of the sessions by the next records of the log; None without records.

    The result does not depend on how records are grouped: rows are ordered, and evicted, by their newest
    records.
    """
    if not records:
        return None
    records = [
        record
        for record, following in zip_longest(records, records[1:])
        if following is None or not _includes(following, record)
    ]
    keys = keys_of(record.session for record in records)
    before = dict(zip(keys, rows.sessions(keys), strict=True))
    after = dict(before)
    for record in records:
        key = session_key(record.session)
        after[key] = with_record(policy.remembered(after[key], record.timestamp_ms), record)
        if record.session.epoch:
            key = client_key(record.session)
            after[key] = with_epoch(policy.remembered(after[key], record.timestamp_ms), record)
    changes = {key: SessionChange(key, before[key], after[key]) for key in keys}
    live, evicted, since_ms, _ = rows.session_counts
    live += sum(state is None or state.is_evicted for state in before.values())
    evicted -= sum(state is not None and state.is_evicted for state in before.values())
    evictions_max = len(changes) + EVICTIONS_BESIDE_MAX
    for key, state in _oldest(rows, changes, min(live - policy.sessions_max, evictions_max), evicted=False):
        changes[key] = _changed(changes, key, state, state._replace(above=0, is_evicted=True))
        live, evicted = live - 1, evicted + 1
    for key, state in _oldest(rows, changes, min(evicted - policy.sessions_max, evictions_max), evicted=True):
        changes[key] = _changed(changes, key, state, None)
        evicted -= 1
    return _update_of(rows, list(changes.values()), live, evicted, since_ms)


def expiry_update(rows: SessionRows, now_ms: int, policy: SessionPolicy, count: int) -> SessionUpdate | None:
    """Return an update that deletes at most `count` sessions that are too old; None if there are none."""
    changes: list[SessionChange] = []
    live, evicted, since_ms, _ = rows.session_counts
    for is_evicted in (False, True):
        for key, state in rows.oldest_sessions(count - len(changes), evicted=is_evicted):
            if policy.remembered(state, now_ms) is not None:
                break
            changes.append(SessionChange(key, state, None))
            live, evicted = live - (not is_evicted), evicted - is_evicted
    if not changes:
        return None
    return _update_of(rows, changes, live, evicted, max(since_ms, now_ms - policy.remembered_ms))


def _update_of(
    rows: SessionRows, changes: list[SessionChange], live: int, evicted: int, since_ms: int
) -> SessionUpdate:
    with_gaps = rows.session_counts.with_gaps
    for _, before, after in changes:
        with_gaps += bool(after and after.above) - bool(before and before.above)
    return SessionUpdate(changes, SessionCounts(live, evicted, since_ms, with_gaps))


def tells_all_of(following: Session | None, session: Session) -> bool:
    """Whether the next record, of the same time, determines the state without this one."""
    return (
        following is not None
        and following.before is not None
        and following.session_hash == session.session_hash
        and following.client_hash == session.client_hash
        and following.epoch == session.epoch
    )


def _includes(following: SessionRecord, record: SessionRecord) -> bool:
    return following.timestamp_ms == record.timestamp_ms and tells_all_of(following.session, record.session)


def _slid(watermark: int, above: int) -> tuple[int, int]:
    """Move the watermark over the stored sequences right above it."""
    stored = _ones(above)
    return watermark + stored, above >> stored


def _ones(bits: int) -> int:
    """Return the number of lowest bits that are set without a gap."""
    return (~bits & bits + 1).bit_length() - 1


def _changed(
    changes: dict[SessionKey, SessionChange],
    key: SessionKey,
    stored: SessionState,
    after: SessionState | None,
) -> SessionChange:
    """Return the change of a row that is stored, or is changed already by this update."""
    earlier = changes.get(key)
    return SessionChange(key, earlier.before if earlier else stored, after)


def _oldest(
    rows: SessionRows, changes: dict[SessionKey, SessionChange], count: int, *, evicted: bool
) -> list[tuple[SessionKey, SessionState]]:
    """Return the `count` least recently used rows, of those stored and those changed."""
    if count <= 0:
        return []
    stored = rows.oldest_sessions(count + len(changes), evicted=evicted)
    untouched = [(key, state) for key, state in stored if key not in changes]
    touched = [
        (key, change.after)
        for key, change in changes.items()
        if change.after is not None and change.after.is_evicted is evicted
    ]
    touched.sort(key=lambda row: (row[1].last_offset, row[0]))
    return [*untouched, *touched][:count]
