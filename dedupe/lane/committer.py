"""
Committer: the seven steps by which a lane decides one batch, named as in docs/COMMIT.md.

Nothing here waits but for the log, and nothing is tried again: any error leaves it unknown what became of
the batch, and the lane reads the log anew.

routes.post_events -> Router.submit -> Lane.submit -> **admit -> PartitionLog.append -> DedupeIndex.apply**
"""

from collections.abc import Sequence
from itertools import zip_longest

from dedupe.admission import NEW, SessionAdmission, Verdicts, admit
from dedupe.committed import Committed
from dedupe.lane.ages import Ages
from dedupe.lane.context import LaneContext
from dedupe.lane.counting import LaneCounts
from dedupe.lane.queue import Batch
from dedupe.lane.restorer import Restorer
from dedupe.log import PartitionLog
from dedupe.record import build_record
from dedupe.sessions import keys_of
from dedupe.types import Event, Offset, Session


class Committer:
    """Decides the batches of one lane, one strictly after another, while its index is open."""

    def __init__(
        self,
        partition: int,
        partition_log: PartitionLog,
        context: LaneContext,
        restorer: Restorer,
        counts: LaneCounts,
        ages: Ages,
    ) -> None:
        self._partition = partition
        self._log = partition_log
        self._context = context
        self._restorer = restorer
        self._counts = counts
        self._ages = ages
        self._has_begun_sessions = False

    def begin(self) -> None:
        """Begin behind a fence: the log may have been made again, without its notes."""
        self._has_begun_sessions = False
        self._ages.forget()

    async def commit(self, batch: Batch) -> Committed | None:
        """
        Look up, admit, append and commit, apply, answer.

        Returns:
            What was appended; None if nothing was new. Whatever it raises, what became of the events
            that were not answered is unknown.
        """
        crashpoint = self._context.crashpoint
        crashpoint("take")
        self._counts.note_batch(batch, self._context.clock.monotonic())
        known = self._restorer.index.lookup([event.key for event in batch.events])
        crashpoint("lookup")
        timestamp_ms = max(batch.received_ms, self._restorer.index.state.newest_timestamp_ms)
        sessions = self._session_admission(batch, timestamp_ms) if batch.has_sessions else None
        verdicts = admit(batch.events, known, window_start=self._restorer.known_from, sessions=sessions)
        crashpoint("admit")
        new = [
            event
            for event, admission in zip(batch.events, verdicts.admissions, strict=True)
            if admission is NEW
        ]
        recorded = () if sessions is None else sessions.recorded
        if new and recorded:
            await self._begin_sessions()
        committed = await self._append(new, recorded, timestamp_ms) if new else None
        self._answer(batch, verdicts, 0 if committed is None else committed.base)
        return committed

    async def _begin_sessions(self) -> None:
        """Note it before the first record of a client session is appended."""
        if not self._has_begun_sessions:
            await self._context.session_notes.begin_sessions(self._partition)
            self._has_begun_sessions = True

    def _session_admission(self, batch: Batch, timestamp_ms: int) -> SessionAdmission:
        """Look up what decides on the batch's session events besides their own keys."""
        index = self._restorer.index
        keys = keys_of(event.session for event in batch.events if event.session is not None)
        guards = [event.guard for event in batch.events if event.guard is not None]
        return SessionAdmission(
            dict(zip(keys, index.sessions(keys), strict=True)),
            dict(zip(guards, index.lookup(guards), strict=True)),
            self._context.session_policy,
            now_ms=timestamp_ms,
        )

    async def _append(
        self, new: Sequence[Event], sessions: Sequence[Session | None], timestamp_ms: int
    ) -> Committed:
        """Append and commit the new events, and what is recorded of their sessions, and apply them."""
        state = self._restorer.index.state
        first_seq = state.next_lane_seq
        records = [
            build_record(event, lane_seq=first_seq + i, timestamp_ms=timestamp_ms, recorded=recorded)
            for i, (event, recorded) in enumerate(zip_longest(new, sessions))
        ]
        began = self._context.clock.monotonic()
        try:
            base = await self._log.append(records)
            assert base >= state.applied_offset, (base, state)
            committed = Committed.of(new, state, base, timestamp_ms, sessions)
            index = self._restorer.index
            index.apply(committed.update(self._restorer.window, index, self._context.session_policy))
        except BaseException:
            self._counts.note_doubt((event.key for event in new), state.applied_offset)
            raise
        self._context.crashpoint("apply")
        took_s = self._context.clock.monotonic() - began
        self._counts.note_commit(first_seq + len(new), timestamp_ms, took_s)
        self._ages.note_commit(base, timestamp_ms)
        return committed

    def _answer(self, batch: Batch, verdicts: Verdicts, base: Offset) -> None:
        """Hand out the outcomes; submissions whose last event this was are answered."""
        admissions, offsets = verdicts.admissions, verdicts.offsets(base)
        self._counts.note_verdicts(batch, admissions)
        self._ages.note(admissions, verdicts.originals, self._restorer.window, batch.received_ms)
        start = 0
        for queued, count in batch.shares:
            end = start + count
            queued.decide(admissions[start:end], offsets[start:end])
            start = end
