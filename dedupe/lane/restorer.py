"""
Restorer: opens a lane's index, proves it against the log or rebuilds it, and replays what is missing.

It drives; every decision is in dedupe.recovery. It never fences and never serves: the lane does.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from dedupe.errors import IndexCorruptError
from dedupe.index import DedupeIndex, IndexIdentity, IndexUpdate
from dedupe.lane.context import LaneContext
from dedupe.lane.record_reader import RecordReader
from dedupe.log import PartitionLog
from dedupe.metrics import LaneMetrics
from dedupe.recovery import Replay, reason_to_rebuild, window_of
from dedupe.sessions import SessionCounts, SessionUpdate, expiry_update
from dedupe.types import Entry, EventKey, Offset
from dedupe.window import Window

PROGRESS_S = 5.0
"""A replay of days takes minutes, in which somebody waits for the gateway to serve."""

SESSIONS_DELETED_MAX = 1_000
"""At once, of those that are too old to be known: 5 ms. The next housekeeping deletes as many."""

CLOCK_JUMP_MS = 3_600_000
"""A log whose newest record is this far in the future was written by a wrong clock, or ours is."""


class Restoring(NamedTuple):
    """How far a replay is."""

    start: Offset
    end: Offset
    applied: Offset
    seconds: float  # since it began

    @property
    def ratio(self) -> float:
        """Of its offsets, 0 to 1."""
        return (self.applied - self.start) / max(1, self.end - self.start)

    @property
    def remaining_s(self) -> float | None:
        """How long it will take at the pace it had so far; None before it has any."""
        done = self.applied - self.start
        return (self.end - self.applied) * self.seconds / done if done > 0 else None


class Restorer:
    """The index of one lane and how it gets to the end of the log."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, metrics: LaneMetrics
    ) -> None:
        self._log = partition_log
        self.partition = partition
        self._context = context
        self._metrics = metrics
        self._reader = RecordReader(partition, partition_log, context, metrics)
        self._identity = IndexIdentity(
            log_id=context.log_id,
            topic=context.topic,
            partition=partition,
            partitions=context.partitions,
            key_check=context.identity.check_value,
        )
        self._index: DedupeIndex | None = None
        self._report = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)
        self._reported_start: Offset = 0
        self._is_discarded = False  # counted as a rebuild already
        self._lost_ms = 0  # timestamp of the newest record that the index knew and the log has lost
        self._replaying: tuple[Offset, Offset, float] | None = None  # start, end, and when it began
        self.window = Window(context.window_policy)
        self.log_start: Offset = 0

    @property
    def index(self) -> DedupeIndex:
        """The open index; only after `check`, and not while `replay` deletes one."""
        assert self._index is not None
        return self._index

    @property
    def is_open(self) -> bool:
        """Whether there is an open index."""
        return self._index is not None

    @property
    def known_from(self) -> Offset:
        """Ids of events before it are new ones, even if they are still in the index."""
        return max(self.window.start, self.log_start)

    @property
    def restoring(self) -> Restoring | None:
        """How far a replay is; None while there is none."""
        if self._replaying is None or self._index is None:
            return None
        start, end, began = self._replaying
        seconds = self._context.clock.monotonic() - began
        return Restoring(start, end, self._index.state.applied_offset, seconds)

    @property
    def window_seconds(self) -> float:
        """How far back ids are remembered now."""
        now_ms = self._context.clock.now_ms()
        since_lost_s = max(0, now_ms - self._lost_ms) / 1000
        return min(since_lost_s, self.window.seconds(now_ms, log_start=self.log_start))

    async def check(self) -> int:
        """
        Prove the log by its first records, before a fence disturbs anybody, and open the index.

        The records come first: an index of another secret would be taken for a useless one. A log
        that is pinned needs no proof.

        Returns:
            How many records proved the log.

        Raises:
            IdentityMismatchError: final, see RecordCheck.
            LogCorruptError: final until an operator looks.
            IndexCorruptError: the index is unusable and cannot be deleted.
            RetriableError: the log or the index cannot be read now.
        """
        self.log_start, end = await self._log.bounds()
        if self._index is not None:
            return 0
        proved = 0
        if not self._context.gate.is_open:
            proved = await self._reader.prove(self.log_start, end)
        await self._open()
        return proved

    async def replay(
        self, end: Offset, on_entries: Callable[[Sequence[tuple[EventKey, Entry]]], None]
    ) -> None:
        """
        Bring the index to `end`, telling the entries of each batch applied.

        Raises:
            RetriableError, IndexCorruptError, LogCorruptError, IdentityMismatchError.
        """
        await self._reset_if_needed(end)
        index = self.index
        self.window = window_of(self._context.window_policy, index)
        replay = Replay(index, self.window, self._context.session_policy)
        start = index.state.applied_offset
        began = said_at = self._context.clock.monotonic()
        self._replaying = start, end, began
        try:
            async with aclosing(self._reader.read(start, end)) as batches:
                async for records in batches:
                    on_entries(replay.apply(records))
                    self._metrics.restored_records += len(records)
                    self._metrics.restore_lag = end - index.state.applied_offset
                    if (now := self._context.clock.monotonic()) - said_at >= PROGRESS_S:
                        said_at = now
                        self._report.info(
                            "lane is restoring",
                            records=replay.records,
                            offsets_to_go=self._metrics.restore_lag,
                        )
                    await asyncio.sleep(0)
        finally:
            self._replaying = None
        replay.finish(end, log_start=self.log_start)
        self._metrics.restore_lag = 0
        self._report_replay(replay)

    def keep_house(self, log_start: Offset) -> None:
        """
        Look whether log and index still hold the whole window, and delete sessions nobody knows any more.

        Raises IndexCorruptError, IndexUnavailableError.
        """
        self.log_start = max(self.log_start, log_start)
        self._report_short_window()
        if not self.index.covers(max(self.window.start, log_start)):
            raise IndexCorruptError("the index dropped entries inside the window")
        state = self.index.state  # log time: this clock may be wrong
        expired = expiry_update(
            self.index, state.newest_timestamp_ms, self._context.session_policy, SESSIONS_DELETED_MAX
        )
        if expired is not None:
            self.index.apply(IndexUpdate((), state, sessions=expired))

    def discard(self) -> None:
        """Delete the index; the next `check` begins an empty one. Raises IndexCorruptError."""
        self.close()
        self._metrics.rebuilds += 1
        self._is_discarded = True
        self._context.store.discard(self._identity)

    def close(self) -> None:
        """Close the index, if open."""
        if self._index is not None:
            self._index.close()
            self._index = None

    async def _open(self) -> None:
        """Open the index, an empty one in place of an unusable one; of all lanes, one a turn of the loop."""
        store = self._context.store
        await store.prepare(self._identity)
        async with self._context.open_turn:
            try:
                self._index = store.open(self._identity)
            except IndexCorruptError as err:
                self._report.error("index is unusable, rebuilding it from the log", reason=str(err))
                self.discard()
                await store.prepare(self._identity)
                self._index = store.open(self._identity)
            await asyncio.sleep(0)

    async def _reset_if_needed(self, end: Offset) -> None:
        """Begin the index anew where it is empty or must not be continued: at the window's start."""
        is_empty = self.index.state.last_offset < 0
        if not is_empty:
            reason = await self._reason_to_rebuild(end)
            if reason is None:
                return
            self._report.error("index is rebuilt from the log", reason=reason)
            self.discard()  # unlike `reset`, it deletes files beside the loop
            await self._open()
        has_records = await self._reader.first(self.log_start, end) is not None
        if is_empty and has_records and not self._is_discarded:
            self._metrics.begun_empty += 1
        self._is_discarded = False
        if self.log_start == 0 and not has_records:  # Kafka's markers take offsets, too
            await self._context.session_notes.begin_log(self.partition)
        start, sessions_since_ms = await self._reader.rebuild_start(self.log_start, end)
        index = self.index
        if index.state.applied_offset != start:
            index.reset(start)
        if sessions_since_ms:
            update = SessionUpdate((), SessionCounts(0, 0, sessions_since_ms))
            index.apply(IndexUpdate((), index.state, sessions=update))

    async def _reason_to_rebuild(self, end: Offset) -> str | None:
        """
        Return what speaks against continuing from the index, or None.

        The record it calls the last proves that it follows this very log. It is read after the
        fence: before, a commit whose marker is late would look like a lost one.
        """
        state = self.index.state
        last = await self._reader.first(max(state.last_offset, self.log_start), end)
        reason = reason_to_rebuild(state, last, log_start=self.log_start, end=end)
        if reason is not None:
            self._lost_ms = state.newest_timestamp_ms
            return reason
        oldest_ms = state.newest_timestamp_ms - self._context.session_policy.remembered_ms
        if self.index.session_counts.since_ms > oldest_ms:
            return "it does not hold all sessions of the lease"
        if self.index.covers(self.log_start):
            return None
        window = window_of(self._context.window_policy, self.index)
        start = window.start
        if not window.is_whole:  # the window may have been made longer than the index's steps reach
            start = await self._reader.window_start(self.log_start, end)
        if not self.index.covers(max(start, self.log_start)):
            return "it does not hold the whole window"
        return None

    def _report_short_window(self) -> None:
        """Say once, for each log start, that the log has deleted what should still be remembered."""
        is_short = self.window_seconds * 1000 < self._context.window_policy.window_ms
        if self.log_start > max(self.window.start, self._reported_start) and is_short:
            self._reported_start = self.log_start
            self._report.error(
                "the log deleted events inside the window: ids are forgotten too early, check its retention",
                log_start=self.log_start,
                window_seconds=round(self.window_seconds),
            )

    def _report_replay(self, replay: Replay) -> None:
        """Say what a finished replay has come to, and what of it an operator has to look at."""
        state = self.index.state
        self._report_short_window()
        self._metrics.sequence_gaps += replay.sequence_gaps
        if replay.sequence_gaps:
            self._report.error(
                "lane sequence has gaps: the log lost records, or somebody else writes to it",
                gaps=replay.sequence_gaps,
            )
        ahead_ms = state.newest_timestamp_ms - self._context.clock.now_ms()
        if ahead_ms > CLOCK_JUMP_MS:
            self._report.error(
                "the log's newest record lies in the future: check the clocks", ahead_ms=ahead_ms
            )
        self._report.info(
            "lane restored",
            records=replay.records,
            applied_offset=state.applied_offset,
            next_lane_seq=state.next_lane_seq,
        )
