"""
PartitionIndex: the open dedupe index of one partition, with its window. Pure.

It applies commits of the owner, replicated commits and replayed records in the same way.

Committer -> PartitionLog.append -> **PartitionIndex.apply** -> DedupeIndex.apply
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat, zip_longest

from dedupe.decide.committed import Committed
from dedupe.decide.lineage import Lineage
from dedupe.decide.recovery import CheckedRecord
from dedupe.decide.session_update import expiry_update, session_update
from dedupe.decide.sessions import (
    NO_SOURCE,
    SessionCounts,
    SessionPolicy,
    SessionRecord,
    SessionUpdate,
    tells_all_of,
)
from dedupe.decide.window import Step, Window, WindowPolicy
from dedupe.model.types import Entry, EventKey, Offset, entry_of
from dedupe.storage.index import DedupeIndex, IndexState, IndexUpdate

Entries = list[tuple[EventKey, Entry]]


class PartitionIndex:
    """An index from its opening to its closing; IndexRecovery opens it."""

    def __init__(
        self,
        index: DedupeIndex,
        window_policy: WindowPolicy,
        session_policy: SessionPolicy,
        *,
        log_start: Offset,
        lost_ms: int = 0,
        lineage: Lineage | None = None,
    ) -> None:
        """
        Continue with the state of the index.

        Args:
            index: an open index, closed with this.
            window_policy: how long ids are remembered.
            session_policy: how long and how many client sessions are remembered.
            log_start: the log's first offset.
            lost_ms: timestamp of the newest record that the log has lost.
            lineage: from which other logs it follows, if any.
        """
        self.index = index
        self.window = window_of(window_policy, index)
        self.log_start = log_start
        self.is_open = True
        self.disproved: str | None = None
        """Why the log has disproved an entry; then the index must be rebuilt."""
        self._window_policy = window_policy
        self._session_policy = session_policy
        self._lost_ms = lost_ms
        self._own_start: Offset = 0 if lineage is None else lineage.own_start
        self.lane_seq_min = 0 if lineage is None else lineage.lane_seq
        """The first lane sequence of its own log."""
        self.timestamp_min_ms = 0 if lineage is None else lineage.timestamp_ms
        """No record of its own log is older."""

    @property
    def known_from(self) -> Offset:
        """The first offset whose id is remembered; earlier ids are new, even if they are stored."""
        return max(self.window.start, self.log_start)

    def window_seconds(self, now_ms: int) -> float:
        """Return for how many seconds before a log time ids are remembered."""
        since_lost_s = max(0, now_ms - self._lost_ms) / 1000
        return min(since_lost_s, self.window.seconds(now_ms, log_start=self.log_start))

    def apply(self, committed: Committed) -> None:
        """Add one commit, the next one of the log. Raises IndexCorruptError, IndexUnavailableError."""
        first_seq, base, timestamp_ms, _, keys, fingerprints, secondary_keys, sessions, *_ = committed
        count = len(keys)
        offsets = range(base, base + count)
        entries = list(zip(keys, map(entry_of, zip(offsets, fingerprints, strict=True)), strict=True))
        self._apply(
            entries,
            Step(timestamp_ms, base + count - 1, first_seq + count - 1),
            map(Step, repeat(timestamp_ms), offsets, range(first_seq, first_seq + count)),
            [
                (secondary_key, entries[i][1])
                for i, secondary_key in enumerate(secondary_keys)
                if secondary_key is not None
            ],
            _session_records(committed) if sessions else (),
        )

    def begin_replay(self, records: int) -> None:
        """
        Return the window to what is stored: an update that failed may have moved it alone.

        `records` is how many the replay has at most.
        """
        self.index.expect(records)
        self.window = window_of(self._window_policy, self.index)

    def replay(self, records: Sequence[CheckedRecord]) -> Entries:
        """
        Add the next records of the log, n >= 1; return their entries, in order.

        Raises:
            IndexCorruptError, IndexUnavailableError: the index could not be written.
        """
        entries = [
            (identity.key, entry_of((offset, identity.fingerprint))) for offset, _, identity, *_ in records
        ]
        before_ms = self.index.state.newest_timestamp_ms
        last = records[-1]
        self._apply(
            entries,
            Step(
                max(before_ms, *(record.timestamp_ms for record in records)),
                last.offset,
                last.identity.lane_seq,
            ),
            _steps(records, before_ms),
            [
                (secondary_key, Entry(offset, identity.fingerprint))
                for offset, _, identity, secondary_key, _ in records
                if secondary_key is not None
            ],
            [
                SessionRecord(offset, timestamp_ms, identity.session, source_hash, identity.evicted)
                for offset, timestamp_ms, identity, _, source_hash in records
                if identity.session is not None
            ],
        )
        return entries

    def finish_replay(self, end: Offset) -> None:
        """
        Set the index's position to `end`, behind control records.

        If retention has deleted all records, the lane sequence continues at `end`, which no earlier record
        can have exceeded.
        """
        state = self.index.state
        next_lane_seq = state.next_lane_seq
        if state.last_offset < 0 and self.log_start > self._own_start:
            next_lane_seq = self.lane_seq_min + end - self._own_start
        self.index.apply(IndexUpdate((), state._replace(applied_offset=end, next_lane_seq=next_lane_seq)))

    def begin_at(self, start: Offset, sessions_since_ms: int) -> None:
        """Begin an empty index at `start`; the log from there has all sessions used after a time."""
        if self.index.state.applied_offset != start:
            self.index.reset(start)
        if sessions_since_ms:
            update = SessionUpdate((), SessionCounts(0, 0, sessions_since_ms))
            self.index.apply(IndexUpdate((), self.index.state, sessions=update))

    def expire_sessions(self, count: int) -> None:
        """Delete at most `count` sessions that are too old, by log time. Raises as `apply` does."""
        state = self.index.state
        expired = expiry_update(self.index, state.newest_timestamp_ms, self._session_policy, count)
        if expired is not None:
            self.index.apply(IndexUpdate((), state, sessions=expired))

    def close(self) -> None:
        """Close the index."""
        self.is_open = False
        self.index.close()

    def _apply(
        self,
        entries: Entries,
        newest: Step,
        steps: Iterable[Step],
        secondary_keys: Sequence[tuple[EventKey, Entry]],
        sessions: Sequence[SessionRecord],
    ) -> None:
        """Move the window past the newest records, and store all of them in one update."""
        added, dropped = self.window.advance(newest, steps)
        last_key, (last_offset, _) = entries[-1]
        state = IndexState(last_offset + 1, newest.lane_seq + 1, newest.timestamp_ms, last_offset, last_key)
        update = session_update(self.index, sessions, self._session_policy) if sessions else None
        self.index.apply(IndexUpdate(entries, state, added, dropped, secondary_keys, update))


def window_of(policy: WindowPolicy, index: DedupeIndex) -> Window:
    """Return the window of an index's steps and state."""
    state = index.state
    if state.last_offset < 0:
        return Window(policy)
    newest = Step(state.newest_timestamp_ms, state.last_offset, state.next_lane_seq - 1)
    return Window(policy, index.steps, newest)


def _steps(records: Sequence[CheckedRecord], newest_ms: int) -> Iterator[Step]:
    """Yield a step of every record, with timestamps that do not decrease from `newest_ms` on."""
    for offset, timestamp_ms, identity, *_ in records:
        newest_ms = max(newest_ms, timestamp_ms)
        yield Step(newest_ms, offset, identity.lane_seq)


def _session_records(committed: Committed) -> list[SessionRecord]:
    """Return the records of sessions, without those of which the next one says all."""
    columns = committed.sessions, committed.sessions[1:], committed.source_hashes, committed.evicted
    return [
        SessionRecord(offset, committed.timestamp_ms, session, source_hash or NO_SOURCE, evicted or ())
        for offset, (session, following, source_hash, evicted) in enumerate(
            zip_longest(*columns), committed.base
        )
        if session is not None and (evicted or not tells_all_of(following, session))
    ]
