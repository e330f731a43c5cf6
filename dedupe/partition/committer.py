"""
Committer: the seven steps by which a lane decides one batch, named as in docs/COMMIT.md.

It waits only for the log, and repeats nothing: after any error the outcome of the batch is unknown, and the
lane reads the log again.

routes.post_events -> Router.submit -> Lane.submit -> **admit -> PartitionLog.append -> PartitionIndex.apply**
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from dedupe.decide.admission import NEW, SessionAdmission, Verdicts, admit
from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.sessions import keys_of
from dedupe.model.record import build_record
from dedupe.model.types import Event, Offset, Session
from dedupe.partition.context import LaneContext
from dedupe.partition.metrics import LaneCounts
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.queue import Batch
from dedupe.storage.log import PartitionLog


class Committer:
    """Decides the batches of one lane, one strictly after another."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, counts: LaneCounts
    ) -> None:
        self.replicate: Callable[[Committed], None] | None = None
        """Sends a commit to the worker that follows this lane; None if none does. Must not raise."""
        self._partition = partition
        self._log = partition_log
        self._context = context
        self._counts = counts
        self._has_begun_sessions = False
        self.appending_since: float | None = None
        """Since when an append waits for the log, monotonic."""

    def begin(self) -> None:
        """Begin after a fence: the log may have been created anew, without its notes."""
        self._has_begun_sessions = False

    async def commit(self, batch: Batch, index: PartitionIndex) -> Committed | None:
        """
        Look up, admit, append and commit, apply, answer.

        Args:
            batch: n >= 1 events.
            index: open, and at the end of the log.

        Returns:
            The appended events; None if none was new. After any error the outcome of the events that were not
            answered is unknown.
        """
        self._crashpoint("take")
        self._counts.note_taken(batch, self._context.clock.monotonic())
        known = index.index.lookup([event.key for event in batch.events])
        self._crashpoint("lookup")
        timestamp_ms = max(batch.received_ms, index.index.state.newest_timestamp_ms)
        sessions = self._session_admission(batch, index, timestamp_ms) if batch.has_sessions else None
        verdicts = admit(batch.events, known, window_start=index.known_from, sessions=sessions)
        self._crashpoint("admit")
        new = [
            event
            for event, admission in zip(batch.events, verdicts.admissions, strict=True)
            if admission is NEW
        ]
        recorded = () if sessions is None else sessions.recorded
        if new and recorded:
            await self._begin_sessions()
        committed = await self._append(new, recorded, index, timestamp_ms) if new else None
        self._counts.note_decided(batch, verdicts, index.window)
        _answer(batch, verdicts, 0 if committed is None else committed.base)
        if committed is not None and self.replicate is not None:
            self.replicate(committed)
        self._crashpoint("answer")
        return committed

    def _crashpoint(self, step: str) -> None:
        if self._context.crashpoint is not None:
            self._context.crashpoint(step)

    async def _begin_sessions(self) -> None:
        """Write the note of sessions before the first record of a client session is appended."""
        if not self._has_begun_sessions:
            await self._context.session_notes.begin_sessions(self._partition)
            self._has_begun_sessions = True

    def _session_admission(self, batch: Batch, index: PartitionIndex, timestamp_ms: int) -> SessionAdmission:
        """Look up the sessions and secondary keys of the batch's events."""
        keys = keys_of(event.session for event in batch.events if event.session is not None)
        secondary_keys = [event.secondary_key for event in batch.events if event.secondary_key is not None]
        return SessionAdmission(
            dict(zip(keys, index.index.sessions(keys), strict=True)),
            dict(zip(secondary_keys, index.index.lookup(secondary_keys), strict=True)),
            self._context.session_policy,
            now_ms=timestamp_ms,
        )

    async def _append(
        self,
        new: Sequence[Event],
        sessions: Sequence[Session | None],
        index: PartitionIndex,
        timestamp_ms: int,
    ) -> Committed:
        """Append the new events with their sessions, and apply them."""
        state = index.index.state
        first_seq = state.next_lane_seq
        records = [
            build_record(event, lane_seq=first_seq + i, timestamp_ms=timestamp_ms, recorded=recorded)
            for i, (event, recorded) in enumerate(zip_longest(new, sessions))
        ]
        self.appending_since = began = self._context.clock.monotonic()
        try:
            base = await self._log.append(records)
            assert base >= state.applied_offset, (base, state)
            committed = Committed(
                first_seq,
                base,
                timestamp_ms,
                LastRecord(state.last_offset, state.last_key, state.newest_timestamp_ms),
                [event.key for event in new],
                [event.fingerprint for event in new],
                [event.secondary_key for event in new] if sessions else (),
                sessions,
            )
            index.apply(committed)
        except BaseException:
            self._counts.note_doubt((event.key for event in new), state.applied_offset)
            raise
        finally:
            self.appending_since = None
        self._crashpoint("apply")
        self._counts.note_commit(committed, self._context.clock.monotonic() - began)
        return committed


def _answer(batch: Batch, verdicts: Verdicts, base: Offset) -> None:
    """Add the outcomes to their submissions, which are answered after their last event."""
    admissions, offsets = verdicts.admissions, verdicts.offsets(base)
    start = 0
    for queued, count in batch.shares:
        end = start + count
        queued.decide(admissions[start:end], offsets[start:end])
        start = end
