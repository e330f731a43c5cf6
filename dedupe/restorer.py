"""
Restorer: opens a lane's index, proves it against the log or rebuilds it, and replays what is missing.

It drives; every decision is in dedupe.recovery. It never fences and never serves: the lane does.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import structlog

from dedupe.errors import IndexCorruptError
from dedupe.index import DedupeIndex, IndexIdentity
from dedupe.lane_context import LaneContext
from dedupe.log import PartitionLog
from dedupe.metrics import LaneMetrics
from dedupe.recovery import RecordCheck, Replay, reason_to_rebuild
from dedupe.types import Entry, EventKey, LogRecord, Offset
from dedupe.window import Window

PROGRESS_S = 5.0
"""A replay of days takes minutes, in which somebody waits for the gateway to serve."""

CLOCK_JUMP_MS = 3_600_000
"""A log whose newest record is this far in the future was written by a wrong clock, or ours is."""


class Restorer:
    """The index of one lane and how it gets to the end of the log."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, metrics: LaneMetrics
    ) -> None:
        self._log = partition_log
        self._context = context
        self._metrics = metrics
        self._check = RecordCheck(context.identity, partition, context.partitions)
        self._identity = IndexIdentity(
            log_id=context.log_id,
            topic=context.topic,
            partition=partition,
            partitions=context.partitions,
            key_check=context.identity.check_value,
        )
        self._index: DedupeIndex | None = None
        self._report = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)
        self.window = Window(context.policy)
        self.log_start: Offset = 0
        self.found_ms: int | None = None  # log time of the newest record when this process came

    @property
    def index(self) -> DedupeIndex:
        """The open index; only after `check`."""
        assert self._index is not None
        return self._index

    async def check(self) -> None:
        """
        Check one record of the log, before a fence disturbs anybody, and open the index.

        The record comes first: an index of another secret would be taken for a useless one.

        Raises:
            IdentityMismatchError: final, see RecordCheck.
            LogCorruptError: final until an operator looks.
            IndexCorruptError: the index is unusable and cannot be deleted.
            RetriableError: the log or the index cannot be read now.
        """
        self.log_start, end = await self._log.bounds()
        if self._index is not None:
            return
        probe = await self._first_record(self.log_start, end)
        if probe is not None:
            self._check.identity_of(probe)
        self._index = self._open()

    async def replay(
        self, end: Offset, on_entries: Callable[[Sequence[tuple[EventKey, Entry]]], None]
    ) -> None:
        """
        Bring the index to `end`, telling the entries of each batch applied.

        Raises:
            RetriableError, IndexCorruptError, LogCorruptError, IdentityMismatchError.
        """
        index = self.index
        self.window = Window(self._context.policy, index.steps)
        await self._reset_if_needed(end)
        replay = Replay(index, self.window, self._check)
        start = index.state.applied_offset
        said_at = self._context.clock.monotonic()
        async with aclosing(self._log.read(start, end)) as batches:
            async for records in batches:
                on_entries(replay.apply(records))
                self._metrics.restored_records += len(records)
                self._metrics.restore_lag = end - index.state.applied_offset
                if (now := self._context.clock.monotonic()) - said_at >= PROGRESS_S:
                    said_at = now
                    self._report.info(
                        "lane is restoring", records=replay.records, offsets_to_go=self._metrics.restore_lag
                    )
                await asyncio.sleep(0)
        replay.finish(end, log_start=self.log_start)
        self._metrics.restore_lag = 0
        self._finish_report(replay)

    def keep_house(self, log_start: Offset) -> None:
        """Look whether the index still holds the whole window. Raises IndexCorruptError."""
        self.log_start = log_start
        if not self.index.covers(max(self.window.start, log_start)):
            raise IndexCorruptError("the index dropped entries inside the window")

    def discard(self) -> None:
        """Delete the index; the next `check` begins an empty one. Raises IndexCorruptError."""
        self.close()
        self._metrics.rebuilds += 1
        self._context.store.discard(self._identity)

    def close(self) -> None:
        """Close the index, if open."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _open(self) -> DedupeIndex:
        try:
            return self._context.store.open(self._identity)
        except IndexCorruptError as err:
            self._report.error("index is unusable, rebuilding it from the log", reason=str(err))
            self.discard()
            return self._context.store.open(self._identity)

    async def _first_record(self, start: Offset, end: Offset) -> LogRecord | None:
        """Return the first committed record of [start, end), or None."""
        async with aclosing(self._log.read(start, end)) as batches:
            async for records in batches:
                return records[0]
        return None

    async def _reset_if_needed(self, end: Offset) -> None:
        state = self.index.state
        if state.last_offset < 0:
            if state.applied_offset == self.log_start:
                return  # empty, and so it begins where the log does
        else:
            reason = await self._reason_to_rebuild(end)
            if reason is None:
                return
            self._metrics.rebuilds += 1
            self._report.error("index is rebuilt from the log", reason=reason)
        self.index.reset(self.log_start)
        self.window = Window(self._context.policy)

    async def _reason_to_rebuild(self, end: Offset) -> str | None:
        """
        Return what speaks against continuing from the index, or None.

        The record it calls the last proves that it follows this very log. It is read after the
        fence: before, a commit whose marker is late would look like a lost one.
        """
        reason = reason_to_rebuild(
            self.index, window_start=self.window.start, log_start=self.log_start, end=end
        )
        if reason is not None:
            return reason
        state = self.index.state
        last = await self._first_record(state.last_offset, end)
        if last is None or (last.offset, self._check.identity_of(last).key) != (
            state.last_offset,
            state.last_key,
        ):
            return "the log does not hold the last record it knows"
        return None

    def _finish_report(self, replay: Replay) -> None:
        state = self.index.state
        if self.found_ms is None:
            self.found_ms = state.newest_timestamp_ms
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
