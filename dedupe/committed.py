"""
What one commit adds to the index of its lane, for its owner and for whoever follows it. Pure.

Lane.submit -> admit -> PartitionLog.append -> **Committed.update** -> DedupeIndex.apply
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from dedupe.index import IndexState, IndexUpdate
from dedupe.recovery import index_update
from dedupe.sessions import SessionPolicy, SessionRecord, SessionRows, session_update, tells_all_of
from dedupe.types import Event, EventKey, Fingerprint, Offset, Session, entry_of
from dedupe.window import Step, Window


class LastRecord(NamedTuple):
    """What tells of which log an index is, and how far: no two records of a lane have all three in common."""

    offset: Offset
    key: EventKey
    timestamp_ms: int

    @classmethod
    def of(cls, state: IndexState) -> "LastRecord":
        """Return what an index knows last."""
        return cls(state.last_offset, state.last_key, state.newest_timestamp_ms)


class Committed(NamedTuple):
    """One commit as columns: n >= 1 records, at consecutive offsets, of consecutive lane sequences."""

    first_seq: int
    base: Offset
    timestamp_ms: int
    after: LastRecord  # in the index of the owner, before
    keys: Sequence[EventKey]
    fingerprints: Sequence[Fingerprint]
    guards: Sequence[EventKey | None] = ()  # of no event, or of each
    sessions: Sequence[Session | None] = ()  # the same

    @classmethod
    def of(
        cls,
        events: Sequence[Event],
        before: IndexState,
        base: Offset,
        timestamp_ms: int,
        sessions: Sequence[Session | None] = (),
    ) -> "Committed":
        """Return the commit of new events, of sessions as recorded, to an index that was in this state."""
        return cls(
            before.next_lane_seq,
            base,
            timestamp_ms,
            LastRecord.of(before),
            [event.key for event in events],
            [event.fingerprint for event in events],
            [event.guard for event in events] if sessions else (),
            sessions,
        )

    def update(self, window: Window, rows: SessionRows, policy: SessionPolicy) -> IndexUpdate:
        """
        Return what an index has to store that knows everything before this.

        Args:
            window: moved in place.
            rows: the index's sessions, as they are before.
            policy: what bounds them.
        """
        base, count, timestamp_ms = self.base, len(self.keys), self.timestamp_ms
        places = zip(range(base, base + count), self.fingerprints, strict=True)
        entries = list(zip(self.keys, map(entry_of, places), strict=True))
        return index_update(
            window,
            entries,
            Step(timestamp_ms, base + count - 1, self.first_seq + count - 1),
            self._steps,
            applied_offset=base + count,
            guards=[(guard, entries[i][1]) for i, guard in enumerate(self.guards) if guard is not None],
            sessions=session_update(
                rows,
                [
                    SessionRecord(base + i, timestamp_ms, session)
                    for i, (session, following) in enumerate(zip_longest(self.sessions, self.sessions[1:]))
                    if session is not None and not tells_all_of(following, session)
                ],
                policy,
            ),
        )

    def _steps(self) -> Iterator[Step]:
        for i in range(len(self.keys)):
            yield Step(self.timestamp_ms, self.base + i, self.first_seq + i)
