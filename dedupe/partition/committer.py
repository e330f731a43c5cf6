"""
Committer: the seven steps by which a lane decides one batch, named as in docs/COMMIT.md.

It waits only for the log, and repeats nothing but a part of what the log has refused for its records: after
any other error the outcome of the batch is unknown, and the lane reads the log again.

routes.post_events -> Router.submit -> Lane.submit -> **admit -> PartitionLog.append -> PartitionIndex.apply**
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

import structlog

from dedupe.decide.admission import NEW, NO_ORIGINAL, Admission, SessionAdmission, Verdicts, admit
from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.evictions import NO_EVICTIONS, EndedSessions, Evictions, evictions_of
from dedupe.decide.sessions import NO_SOURCE, SessionKey, keys_of
from dedupe.model.errors import FencedError, NotAppendedError, RecordsRefusedError
from dedupe.model.record import EVICTED_MAX, EventRecords
from dedupe.model.types import Event, Offset, Session
from dedupe.partition.context import LaneContext
from dedupe.partition.metrics import LaneCounts
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.queue import Batch
from dedupe.storage.log import PartitionLog

CONFIRM_S = 1.0
"""The longest that duplicates are answered without a word of the log: its topic may have been made anew."""


_NO_SESSIONS: tuple[Sequence[bytes], Evictions, Sequence[Sequence[SessionKey]]] = (), NO_EVICTIONS, ()


class Committer:
    """Decides the batches of one lane, one strictly after another."""

    def __init__(
        self,
        partition: int,
        partition_log: PartitionLog,
        context: LaneContext,
        counts: LaneCounts,
        *,
        confirm_topic: Callable[[], Awaitable[None]],
        limit_batches: Callable[[int], None],
        prove: Callable[[Sequence[Event], Verdicts], None],
    ) -> None:
        """
        Begin nothing yet.

        Args:
            partition: its number.
            partition_log: the log.
            context: see LaneContext.
            counts: counts the verdicts.
            confirm_topic: see Maintenance.confirm_topic.
            limit_batches: see LaneQueue.limit_batches.
            prove: see DuplicateProof.sample.
        """
        self.replicate: Callable[[Committed], None] | None = None
        """Sends a commit to the worker that follows this lane; None if none does. Must not raise."""
        self._partition = partition
        self._log = partition_log
        self._context = context
        self._counts = counts
        self._has_begun_sessions = False
        self._ended = EndedSessions()
        self._confirmed_at = 0.0  # when the log is known to be the index's, by the monotonic clock
        self._confirm_topic = confirm_topic
        self._limit_batches = limit_batches
        self._prove = prove
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)
        self.appending_since: float | None = None
        """Since when an append waits for the log, monotonic."""

    def begin(self) -> None:
        """Begin after a fence: the log may have been created anew, without its notes."""
        self._has_begun_sessions = False
        self._ended.clear()
        self._confirmed_at = self._context.clock.monotonic()

    def note_ended(self, key: SessionKey, last_offset: Offset) -> None:
        """Note that a session has no more events; see EndedSessions."""
        self._ended.note(key, last_offset)

    async def commit(self, batch: Batch, index: PartitionIndex) -> Committed | None:
        """
        Look up, admit, append and commit, apply, answer.

        A batch that the log refuses for its records is committed in halves, down to the one event.

        Args:
            batch: n >= 1 events.
            index: open, and at the end of the log.

        Returns:
            The events that were appended last; None if none was new. After any error the outcome of the
            events that were not answered is unknown, after NotAppendedError they are not in the log.
        """
        self.reach("take")
        now = self._context.clock.monotonic()
        self._counts.note_taken(batch, now)
        try:
            return await self._commit(batch, index, now)
        except RecordsRefusedError as err:
            self._note_refused(batch, err)
            return await self._commit_less(batch, index, err)

    def _note_refused(self, batch: Batch, err: RecordsRefusedError) -> None:
        """Make smaller batches after a refusal for size, and have the settings of the log looked at."""
        self._counts.note_refused()
        if err.is_for_size and len(batch.events) > 1:
            self._limit_batches(batch.size_bytes // 2)
        self._logger.warning(
            "the log refuses records: what fits is committed in parts, what fits nowhere is quarantined",
            reason=str(err),
            events=len(batch.events),
        )
        self._context.on_settings_doubted()

    async def _commit_less(
        self, batch: Batch, index: PartitionIndex, err: RecordsRefusedError
    ) -> Committed | None:
        """Commit a refused batch in halves; an event that is alone in it gets its verdict."""
        if len(batch.events) == 1:
            admission = Admission.TOO_LARGE if err.is_for_size else Admission.REFUSED
            verdicts = Verdicts([admission], [NO_ORIGINAL])
            self._counts.note_decided(batch, verdicts, index.window)
            _answer(batch, verdicts, 0)
            return None
        committed: Committed | None = None
        for half in batch.halves():
            try:
                last = await self._commit(half, index, self._context.clock.monotonic())
            except RecordsRefusedError as refusal:
                last = await self._commit_less(half, index, refusal)
            committed = last or committed
        return committed

    async def _commit(self, batch: Batch, index: PartitionIndex, now: float) -> Committed | None:
        """Commit a batch as a whole; `now` is by the monotonic clock."""
        known = index.index.lookup([event.key for event in batch.events])
        self.reach("lookup")
        timestamp_ms = max(batch.received_ms, index.index.state.newest_timestamp_ms, index.timestamp_min_ms)
        sessions = self._session_admission(batch, index, timestamp_ms) if batch.has_sessions else None
        verdicts = admit(batch.events, known, window_start=index.known_from, sessions=sessions)
        self.reach("admit")
        new: list[Event] = []
        if NEW in set(verdicts.admissions):  # of a list, each comparison of two verdicts would cost
            verdict_of_each = zip(batch.events, verdicts.admissions, strict=True)
            new = [event for event, admission in verdict_of_each if admission is NEW]
        recorded = () if sessions is None else sessions.recorded
        if new and recorded:
            await self._begin_sessions()
        committed: Committed | None = None
        if new:
            committed = await self._append(new, recorded, index, timestamp_ms)
        elif now - self._confirmed_at > CONFIRM_S:
            self._confirmed_at = now
            await self._confirm_topic()
        self._counts.note_decided(batch, verdicts, index.window)
        _answer(batch, verdicts, 0 if committed is None else committed.base)
        if committed is not None and self.replicate is not None:
            self.replicate(committed)
        if len(new) < len(batch.events):
            self._prove(batch.events, verdicts)
        self.reach("answer")
        return committed

    def reach(self, step: str) -> None:
        """Call the crash point, if there is one."""
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
        first_seq = max(state.next_lane_seq, index.lane_seq_min)
        source_hashes, evictions, evicted = _NO_SESSIONS
        if sessions:
            source_hashes = self._source_hashes(new, sessions)
            own = [(session, of) for session, of in zip(sessions, source_hashes, strict=True) if session]
            evictions = evictions_of(index.index, own, self._ended, self._context.session_policy)
            evicted = _by_record(evictions.keys, sessions)
        records = EventRecords(new, sessions, evicted, lane_seq=first_seq, timestamp_ms=timestamp_ms)
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
                source_hashes,
                evicted,
            )
            index.apply(committed)
        except (NotAppendedError, FencedError):
            raise
        except BaseException:
            self._counts.note_doubt((event.key for event in new), state.applied_offset)
            raise
        finally:
            self.appending_since = None
        self.reach("apply")
        self._confirmed_at = self._context.clock.monotonic()
        self._counts.note_commit(committed, evictions, self._confirmed_at - began)
        return committed

    def _source_hashes(self, new: Sequence[Event], sessions: Sequence[Session | None]) -> list[bytes]:
        source_hash = self._context.identity.source_hash
        return [
            NO_SOURCE if session is None else source_hash(event.source)
            for event, session in zip(new, sessions, strict=True)
        ]


def _by_record(
    evicted: Sequence[SessionKey], sessions: Sequence[Session | None]
) -> list[Sequence[SessionKey]]:
    """Return the sessions that each record says are evicted; empty if none is."""
    if not evicted:
        return []
    keys = iter(evicted)
    return [() if session is None else tuple(islice(keys, EVICTED_MAX)) for session in sessions]


def _answer(batch: Batch, verdicts: Verdicts, base: Offset) -> None:
    """Add the outcomes to their submissions, which are answered after their last event."""
    admissions, offsets = verdicts.admissions, verdicts.offsets(base)
    start = 0
    for queued, count in batch.shares:
        end = start + count
        queued.decide(admissions[start:end], offsets[start:end])
        start = end
