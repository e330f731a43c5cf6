"""
What the next records of a lane's log change in its sessions. Pure.

The result does not depend on how the records are grouped: they are applied one after the other. Which
sessions are evicted stands in the records, so owner, standby and rebuild agree about it.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from dedupe.decide.sessions import (
    EVICTED,
    LIVE,
    NEW_SESSION,
    SessionChange,
    SessionCounts,
    SessionKey,
    SessionPolicy,
    SessionRecord,
    SessionRows,
    SessionState,
    SessionUpdate,
    client_key,
    keys_of,
    session_key,
    tells_all_of,
    with_epoch,
    with_record,
)
from dedupe.model.types import Offset

READ_MIN = 16
"""How many evicted rows are read at first; each further read has twice as many."""

UNKNOWN_SESSION = NEW_SESSION._replace(last_offset=0)
"""The state of an evicted session of which no record is known: too old to be remembered."""

FORGOTTEN_MAX = 4
"""How many evicted sessions are forgotten for each further one: a lower limit is reached in steps."""


def session_update(
    rows: SessionRows, records: Sequence[SessionRecord], policy: SessionPolicy
) -> SessionUpdate | None:
    """Return the update of the sessions by the next records of the log; None without records."""
    if not records:
        return None
    records = [
        record
        for record, following in zip_longest(records, records[1:])
        if following is None or not _includes(following, record)
    ]
    keys = keys_of(record.session for record in records)
    evicted = [key for record in records for key in record.evicted]
    working = _WorkingRows(rows, list(dict.fromkeys([*keys, *evicted])))
    for record in records:
        working.take(record, policy)
    return working.update(rows.session_counts.since_ms)


def expiry_update(rows: SessionRows, now_ms: int, policy: SessionPolicy, count: int) -> SessionUpdate | None:
    """Return an update that deletes at most `count` sessions that are too old; None if there are none."""
    working = _WorkingRows(rows, [])
    for listing in (LIVE, EVICTED):
        for key, state in rows.oldest_sessions(count - working.changed, listing):
            if policy.remembered(state, now_ms) is not None:
                break
            working.delete(key, state)
    if not working.changed:
        return None
    return working.update(max(rows.session_counts.since_ms, now_ms - policy.remembered_ms))


class _WorkingRows:
    """The rows of a lane while an update is made."""

    def __init__(self, rows: SessionRows, keys: Sequence[SessionKey]) -> None:
        """Read the rows with these keys, which are all that the records of the update name."""
        self._rows = rows
        self._before = dict(zip(keys, rows.sessions(keys), strict=True))
        self._after: dict[SessionKey, SessionState | None] = {}
        """What has changed, the latest last."""
        self._live, self._evicted, _, self._with_gaps = rows.session_counts
        self._sizes: dict[bytes, int] = {}
        self._earlier: Iterator[tuple[SessionKey, SessionState]] | None = None

    @property
    def changed(self) -> int:
        """The number of changed rows."""
        return len(self._after)

    def take(self, record: SessionRecord, policy: SessionPolicy) -> None:
        """Apply the next record of the log."""
        now_ms, key = record.timestamp_ms, session_key(record.session)
        self._put(key, with_record(policy.remembered(self._state(key), now_ms), record))
        if record.session.epoch:
            key = client_key(record.session)
            self._put(key, with_epoch(policy.remembered(self._state(key), now_ms), record))
        for key in record.evicted:
            self._evict(key, record.offset)
        for _ in range(min(self._evicted - policy.sessions_max, FORGOTTEN_MAX * len(record.evicted))):
            self.delete(*self._first_evicted())

    def delete(self, key: SessionKey, state: SessionState) -> None:
        """Delete a row that was found in a list."""
        self._before.setdefault(key, state)
        self._put(key, None)

    def update(self, since_ms: int) -> SessionUpdate:
        """Return all changes."""
        changes = [SessionChange(key, self._before[key], after) for key, after in self._after.items()]
        counts = SessionCounts(self._live, self._evicted, since_ms, self._with_gaps)
        return SessionUpdate(changes, counts, self._sizes)

    def _evict(self, key: SessionKey, offset: Offset) -> None:
        """
        Evict a session.

        One that is deleted or older than the log's beginning gets a row without a state, so that as many of
        those evicted before it are forgotten as where it was known.
        """
        state = self._state(key) or UNKNOWN_SESSION
        if not state.is_evicted and state.last_offset < offset:
            self._put(key, state._replace(above=0, is_evicted=True, evicted_at=offset))

    def _first_evicted(self) -> tuple[SessionKey, SessionState]:
        """Return the row that was evicted first: those of before this update come first."""
        if self._earlier is None:
            self._earlier = self._unchanged_evicted()
        if (row := next(self._earlier, None)) is not None:
            return row
        return min(
            ((key, state) for key, state in self._after.items() if state is not None and state.is_evicted),
            key=lambda row: (row[1].evicted_at, row[0]),
        )

    def _unchanged_evicted(self) -> Iterator[tuple[SessionKey, SessionState]]:
        """Yield the evicted rows that this update has not changed when they are asked for."""
        count, seen = READ_MIN, 0
        while True:
            rows = self._rows.oldest_sessions(count, EVICTED)
            for row in rows[seen:]:
                if row[0] not in self._after:
                    yield row
            if len(rows) < count:
                return
            count, seen = 2 * count, len(rows)

    def _state(self, key: SessionKey) -> SessionState | None:
        return self._after[key] if key in self._after else self._before[key]

    def _put(self, key: SessionKey, after: SessionState | None) -> None:
        before = self._state(key)
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)
        self._after[key] = after

    def _count(self, state: SessionState, change: int) -> None:
        self._with_gaps += change * bool(state.above)
        if state.is_evicted:
            self._evicted += change
            return
        self._live += change
        source_hash = state.source_hash
        before = self._sizes.get(source_hash)
        if before is None:
            before = self._rows.session_sizes.get(source_hash, 0)
        self._sizes[source_hash] = before + change


def _includes(following: SessionRecord, record: SessionRecord) -> bool:
    return (
        not record.evicted
        and following.timestamp_ms == record.timestamp_ms
        and tells_all_of(following.session, record.session)
    )
