"""
Recovery: what a lane must know before it serves, decided from the log alone. Pure.

A lane proves that its index follows this very log (or rebuilds it), replays what is missing, and
checks every record it reads against its identity secret and partition count. Lane drives; this
module decides. The same `index_update` serves replay and live commits, so both leave the same index.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dedupe.errors import IdentityMismatchError
from dedupe.identity import Identity
from dedupe.index import DedupeIndex, IndexState, IndexUpdate
from dedupe.record import FLAG_ID_ASSIGNED, RecordIdentity, is_identified_by, parse_identity
from dedupe.sessions import SessionPolicy, SessionRecord, SessionUpdate, session_update
from dedupe.types import Entry, EventKey, LogRecord, Offset, entry_of
from dedupe.window import Step, Window, WindowPolicy


class CheckedRecord(NamedTuple):
    """What recovery takes from one committed record that has passed its check."""

    offset: Offset
    timestamp_ms: int
    identity: RecordIdentity
    guard: EventKey | None = None  # see Event


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """Checks committed records of one partition against what this process would have written."""

    identity: Identity
    partition: int
    partitions: int

    def checked(self, record: LogRecord) -> CheckedRecord:
        """
        Return what the record says about itself.

        Raises:
            LogCorruptError: it is not a record of ours.
            IdentityMismatchError: its key or partition comes from another secret or partition count.
        """
        found = parse_identity(record)
        if not is_identified_by(
            record, found, self.identity, partition=self.partition, partitions=self.partitions
        ):
            raise IdentityMismatchError(
                f"partition {self.partition}, offset {record.offset}: this record was written with another "
                "GATEWAY_IDENTITY_SECRET or another number of partitions; serving now would let duplicates in"
            )
        if found.session is None:
            return CheckedRecord(record.offset, record.timestamp_ms, found)
        return CheckedRecord(record.offset, record.timestamp_ms, found, self._guard_of(found))

    def _guard_of(self, found: RecordIdentity) -> EventKey | None:
        """Return the second key of a session's event; one that had no id of its own has none."""
        if found.session is None or found.flags & FLAG_ID_ASSIGNED:
            return None
        return self.identity.guard_key(found.source, found.session.client_hash, found.message_id)


def reason_to_rebuild(
    state: IndexState, last: CheckedRecord | None, *, log_start: Offset, end: Offset
) -> str | None:
    """
    Return why an index of this state does not follow this log, or None if nothing speaks against it.

    Args:
        state: of an index that knows at least one record.
        last: the log's first record at or after the one that the index knows last.
        log_start: the log's first offset.
        end: restore_end_offset.
    """
    if state.applied_offset > end:
        return "it is ahead of the log, which must have lost its tail"
    if state.last_offset < log_start:
        return "the log no longer holds the last record it knows"
    known = (state.last_offset, state.last_key, state.newest_timestamp_ms)  # a lane's times never run back
    if last is None or (last.offset, last.identity.key, last.timestamp_ms) != known:
        return "the log does not hold the last record it knows"
    return None


def window_of(policy: WindowPolicy, index: DedupeIndex) -> Window:
    """Return the window that an index's own steps and state say."""
    state = index.state
    if state.last_offset < 0:
        return Window(policy)
    newest = Step(state.newest_timestamp_ms, state.last_offset, state.next_lane_seq - 1)
    return Window(policy, index.steps, newest)


class Replay:
    """Applies committed records to an index, in order, and watches their sequence."""

    def __init__(self, index: DedupeIndex, window: Window, sessions: SessionPolicy) -> None:
        self._index = index
        self._window = window
        self._sessions = sessions
        self.records = 0
        self.sequence_gaps = 0

    def apply(self, records: Sequence[CheckedRecord]) -> list[tuple[EventKey, Entry]]:
        """
        Apply one batch, n >= 1, and return what the index holds of it now, in order.

        Raises:
            IndexCorruptError, IndexUnavailableError: the index could not be written.
        """
        entries = [(found.key, entry_of((offset, found.fingerprint))) for offset, _, found, _ in records]
        self._count_gaps([found.lane_seq for _, _, found, _ in records])
        before_ms = self._index.state.newest_timestamp_ms
        newest_ms = max(before_ms, *(timestamp_ms for _, timestamp_ms, _, _ in records))
        last = records[-1]
        newest = Step(newest_ms, last.offset, last.identity.lane_seq)
        self._index.apply(
            index_update(
                self._window,
                entries,
                newest,
                lambda: _steps(records, before_ms),
                applied_offset=last.offset + 1,
                guards=[
                    (guard, Entry(offset, found.fingerprint))
                    for offset, _, found, guard in records
                    if guard is not None
                ],
                sessions=self._session_update(records),
            )
        )
        self.records += len(records)
        return entries

    def _session_update(self, records: Sequence[CheckedRecord]) -> SessionUpdate | None:
        found = [
            SessionRecord(offset, timestamp_ms, identity.session)
            for offset, timestamp_ms, identity, _ in records
            if identity.session is not None
        ]
        return session_update(self._index, found, self._sessions)

    def _count_gaps(self, sequence: list[int]) -> None:
        """Count the places where the lane's sequence does not go on by one."""
        state = self._index.state
        expected = state.next_lane_seq if state.last_offset >= 0 else sequence[0]
        if sequence != list(range(expected, expected + len(sequence))):
            self.sequence_gaps += sum(
                after != before + 1 for before, after in pairwise([expected - 1, *sequence])
            )

    def finish(self, end: Offset, *, log_start: Offset) -> None:
        """
        Declare everything below `end` applied, control records included.

        Where retention left no record, the sequence continues at `end`: none ever used can be
        larger, since every record took an offset.
        """
        state = self._index.state
        next_lane_seq = state.next_lane_seq
        if state.last_offset < 0 and log_start > 0:
            next_lane_seq = end
        self._index.apply(IndexUpdate((), state._replace(applied_offset=end, next_lane_seq=next_lane_seq)))


def _steps(records: Sequence[CheckedRecord], newest_ms: int) -> Iterator[Step]:
    """Yield the place of every record; no timestamp is before `newest_ms` or an earlier record's."""
    for offset, timestamp_ms, found, _ in records:
        newest_ms = max(newest_ms, timestamp_ms)
        yield Step(newest_ms, offset, found.lane_seq)


def index_update(
    window: Window,
    entries: Sequence[tuple[EventKey, Entry]],
    newest: Step,
    steps: Callable[[], Iterable[Step]],
    *,
    applied_offset: Offset,
    guards: Sequence[tuple[EventKey, Entry]] = (),
    sessions: SessionUpdate | None = None,
) -> IndexUpdate:
    """
    Move the window past the newest committed records and return what the index has to store.

    Args:
        window: moved in place.
        entries: of the records, in log order, n >= 1.
        newest: place of the last record.
        steps: place of every record, asked for only when a window step begins among them.
        applied_offset: the log is applied up to here, exclusive.
        guards: of the same records.
        sessions: what the records do to them.
    """
    added, dropped = window.advance(newest, steps)
    last_key, last_entry = entries[-1]
    state = IndexState(applied_offset, newest.lane_seq + 1, newest.timestamp_ms, last_entry.offset, last_key)
    return IndexUpdate(entries, state, added, dropped, guards, sessions)
