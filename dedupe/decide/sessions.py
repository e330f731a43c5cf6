"""
Client sessions: which sequences of a client are stored. Pure.

The state of a session is a function of the clean topic's records, so a rebuilt index has the same one. Its
size is fixed: a watermark, and one bit for each of the SEQUENCES_AHEAD_MAX sequences after it (requests may
arrive in another order).

The design follows RIFL (Lee et al., SOSP 2015): completion records, acknowledgements that free them, leases.
The epoch is that of Kafka's idempotent producer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from dedupe.decide.source_sizes import SourceSizes
from dedupe.model.types import Offset, Progress, Session

SessionKey: TypeAlias = bytes
"""Client hash and session hash, 32 bytes; the client's own row has NO_SESSION as its session."""

NO_SESSION = bytes(16)

SEQUENCES_AHEAD_MAX = 512
"""How far above the watermark a sequence may be."""

DAY_MS = 86_400_000

Listing: TypeAlias = bytes
"""A list of rows, oldest first: LIVE, EVICTED, or OF_SOURCE followed by a source's hash."""

LIVE, EVICTED, OF_SOURCE = b"l", b"e", b"o"
"""A live row is in LIVE and in the list of its source."""

NO_SOURCE = bytes(8)

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
    source_hash: bytes = NO_SOURCE  # dedupe.model.identity.Identity.source_hash
    evicted_at: Offset = -1  # the record that says so

    @property
    def listed_at(self) -> Offset:
        """Its place in the lists that have it."""
        return self.evicted_at if self.is_evicted else self.last_offset

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
    """The limit of live sessions, which the lane's owner evicts beyond it, and of evicted ones."""
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
    sizes: Mapping[bytes, int] = {}  # afterwards, the live rows of each source that has changed, by its hash


class SessionRecord(NamedTuple):
    """The session of a record of the clean topic."""

    offset: Offset
    timestamp_ms: int
    session: Session
    source_hash: bytes = NO_SOURCE
    evicted: Sequence[SessionKey] = ()
    """The sessions that are evicted with this record."""


class SessionRows(Protocol):
    """The sessions in a lane's index."""

    @property
    def session_counts(self) -> SessionCounts:
        """The number of rows. Cheap."""

    @property
    def session_sizes(self) -> SourceSizes:
        """The number of live rows of each source that has any, by the source's hash. Cheap."""

    def sessions(self, keys: Sequence[SessionKey]) -> list[SessionState | None]:
        """Return each key's state or None; same order and length. Raises IndexCorruptError."""

    def oldest_sessions(self, count: int, listing: Listing) -> list[tuple[SessionKey, SessionState]]:
        """
        Return at most `count` rows of a list: the least recently used ones, or those evicted first.

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
    offset, timestamp_ms, session, source_hash, *_ = record
    _, _, sequence, epoch, acknowledged, before = session
    if (
        state is not None
        and sequence == state.watermark + 1
        and not state.above
        and acknowledged < sequence
        and (before is None or before == (state.watermark, 0))
    ):
        acknowledged = max(acknowledged, state.acknowledged_through)
        epoch = max(epoch, state.epoch)
        return SessionState(sequence, 0, acknowledged, epoch, timestamp_ms, offset, False, source_hash)
    epoch = max(epoch, state.epoch if state else 0)
    if before is not None:
        state = (state or NEW_SESSION)._replace(watermark=before.watermark, above=before.above)
    state = with_acknowledgement(state, session, sequence - SEQUENCES_AHEAD_MAX)
    above = state.above
    if sequence > state.watermark:
        above |= 1 << (sequence - state.watermark - 1)
    watermark, above = _slid(state.watermark, above)
    acknowledged = state.acknowledged_through
    return SessionState(watermark, above, acknowledged, epoch, timestamp_ms, offset, False, source_hash)


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
    epoch = max(record.session.epoch, state.epoch if state else 0)
    return SessionState(0, 0, 0, epoch, record.timestamp_ms, record.offset, False, record.source_hash)


def tells_all_of(following: Session | None, session: Session) -> bool:
    """Whether the next record, of the same time, determines the state without this one."""
    return (
        following is not None
        and following.before is not None
        and following.session_hash == session.session_hash
        and following.client_hash == session.client_hash
        and following.epoch == session.epoch
    )


def _slid(watermark: int, above: int) -> tuple[int, int]:
    """Move the watermark over the stored sequences right above it."""
    stored = _ones(above)
    return watermark + stored, above >> stored


def _ones(bits: int) -> int:
    """Return the number of lowest bits that are set without a gap."""
    return (~bits & bits + 1).bit_length() - 1
