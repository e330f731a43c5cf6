"""The records of one commit, as the owner's and the follower's index apply them. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from dedupe.decide.sessions import SessionKey
from dedupe.model.types import EventKey, Fingerprint, Offset, Session
from dedupe.storage.index import IndexState


class LastRecord(NamedTuple):
    """The newest record of an index; two records of a lane differ in at least one field."""

    offset: Offset
    key: EventKey
    timestamp_ms: int

    @classmethod
    def of(cls, state: IndexState) -> "LastRecord":
        """Return the newest record of an index in this state."""
        return cls(state.last_offset, state.last_key, state.newest_timestamp_ms)


class Committed(NamedTuple):
    """One commit as columns: n >= 1 records with consecutive offsets and lane sequences."""

    first_seq: int
    base: Offset
    timestamp_ms: int
    after: LastRecord  # of the owner's index before this commit
    keys: Sequence[EventKey]
    fingerprints: Sequence[Fingerprint]
    secondary_keys: Sequence[EventKey | None] = ()  # empty, or n
    sessions: Sequence[Session | None] = ()  # empty, or n
    source_hashes: Sequence[bytes] = ()  # empty, or n; NO_SOURCE without a session
    evicted: Sequence[Sequence[SessionKey]] = ()  # empty, or n
