"""What one commit adds to the index of its partition, the owner's and the followers'. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from dedupe.model.types import EventKey, Fingerprint, Offset, Session
from dedupe.storage.index import IndexState


class LastRecord(NamedTuple):
    """The newest record that an index knows; no two records of a lane have all three fields in common."""

    offset: Offset
    key: EventKey
    timestamp_ms: int

    @classmethod
    def of(cls, state: IndexState) -> "LastRecord":
        """Return the newest record of an index in this state."""
        return cls(state.last_offset, state.last_key, state.newest_timestamp_ms)


class Committed(NamedTuple):
    """One commit as columns: n >= 1 records, at consecutive offsets, of consecutive lane sequences."""

    first_seq: int
    base: Offset
    timestamp_ms: int
    after: LastRecord  # in the index of the owner, before
    keys: Sequence[EventKey]
    fingerprints: Sequence[Fingerprint]
    secondary_keys: Sequence[EventKey | None] = ()  # of no event, or of each
    sessions: Sequence[Session | None] = ()  # the same
