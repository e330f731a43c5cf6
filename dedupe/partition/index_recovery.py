"""
IndexRecovery: opens a partition's index, checks it against the log or rebuilds it, and replays the rest.

It returns a PartitionIndex at the end of the log. dedupe.decide.recovery has the decisions; the lane fences.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from dedupe.decide.lineage import distance
from dedupe.decide.recovery import reason_to_rebuild, sequence_gaps
from dedupe.model.errors import IndexCorruptError, IndexDisprovedError, IndexUnavailableError
from dedupe.model.types import Entry, EventKey, Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.metrics import LaneMetrics
from dedupe.partition.partition_index import PartitionIndex, window_of
from dedupe.partition.record_reader import RecordReader
from dedupe.storage.index import DedupeIndex, IndexState, Opening
from dedupe.storage.log import PartitionLog
from dedupe.storage.snapshots.manifest import Manifest, SnapshotError
from dedupe.storage.snapshots.store import SnapshotStore

PROGRESS_S = 5.0
"""The interval of a replay's log messages."""

WITHDRAW_S = 20.0
"""The longest wait for the bucket before an index that the log has disproved is rebuilt."""

SNAPSHOT_TRIES = 2
"""Then the index is rebuilt from the log, which takes no longer than more tries might."""

CLOCK_JUMP_MS = 3_600_000
"""If the log's newest record is this far in the future, its writer's clock was wrong, or this one is."""


class Restoring(NamedTuple):
    """The progress of a replay."""

    start: Offset
    end: Offset
    applied: Offset
    seconds: float  # since it began
    done: int  # offsets of its logs
    left: int

    @property
    def ratio(self) -> float:
        """The part of the offsets that is replayed, 0 to 1."""
        return self.done / max(1, self.done + self.left)

    @property
    def remaining_s(self) -> float | None:
        """The remaining time at the rate so far; None before the first records."""
        return self.left * self.seconds / self.done if self.done > 0 else None


class IndexRecovery:
    """Brings the index of one partition to the end of the log; used by its lane and its follower."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, metrics: LaneMetrics
    ) -> None:
        self.partition = partition
        self.opened: PartitionIndex | None = None
        """The open index; at the end of the log only after `replay`."""
        self._log = partition_log
        self._context = context
        self._metrics = metrics
        self._reader = RecordReader(partition, partition_log, context, metrics)
        self._lineage = context.lineage_of(partition)
        self.identity = context.index_of(partition)
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)
        self._is_discarded = False  # counted as a rebuild already
        self._is_disproved = False  # its files and its snapshots are to be deleted
        self._log_alone = False  # no snapshot is asked for
        self._lost_ms = 0  # timestamp of the newest record that the log has lost
        self.rebuilding_since: float | None = None
        """Since when the index is rebuilt from the log, or from a snapshot, by the monotonic clock."""
        self._replaying: tuple[Offset, Offset, float] | None = None  # start, end, and when it began

    @property
    def restoring(self) -> Restoring | None:
        """The progress of a replay; None while there is none."""
        if self._replaying is None or self.opened is None:
            return None
        start, end, began = self._replaying
        seconds = self._context.clock.monotonic() - began
        applied = self.opened.index.state.applied_offset
        done, left = distance(self._lineage, start, applied), distance(self._lineage, applied, end)
        return Restoring(start, end, applied, seconds, done, left)

    @property
    def opening(self) -> Opening | None:
        """The progress with an index that was not closed, or with a snapshot; None while there is none."""
        snapshots = self._context.store.snapshots
        restoring = None if snapshots is None else snapshots.opening(self.identity)
        return restoring or self._context.store.opening(self.identity)

    async def check(self) -> None:
        """
        Open the index, before a fence stops the log's writer.

        Raises:
            IndexCorruptError: the index is unusable and cannot be deleted.
            RetriableError: the log or the index cannot be read now.
        """
        log_start, _ = await self._log.bounds()
        if self.opened is not None:
            self.opened.log_start = log_start
        else:
            await self._open(log_start)

    async def replay(
        self, end: Offset, on_entries: Callable[[Sequence[tuple[EventKey, Entry]]], None]
    ) -> PartitionIndex:
        """
        Replay up to `end`, and return the index; `on_entries` receives the entries of each batch.

        Raises:
            RetriableError, IndexCorruptError, LogCorruptError, IdentityMismatchError.
        """
        index = await self._rebuilt_if_needed(end)
        start = index.index.state.applied_offset
        index.begin_replay(distance(self._lineage, start, end))
        began = reported_at = self._context.clock.monotonic()
        self._replaying = start, end, began
        replayed = gaps = 0
        try:
            async with aclosing(self._reader.read(start, end)) as batches:
                async for records in batches:
                    gaps += sequence_gaps(index.index.state, records, self._lineage)
                    on_entries(index.replay(records))
                    replayed += len(records)
                    self._metrics.restored_records += len(records)
                    self._metrics.restore_lag = distance(self._lineage, index.index.state.applied_offset, end)
                    if (now := self._context.clock.monotonic()) - reported_at >= PROGRESS_S:
                        reported_at = now
                        self._logger.info(
                            "lane is restoring", records=replayed, offsets_to_go=self._metrics.restore_lag
                        )
                    await asyncio.sleep(0)
        finally:
            self._replaying = None
        index.finish_replay(end)
        self._log_alone = False
        self.rebuilding_since = None
        self._metrics.restore_lag = 0
        self._metrics.sequence_gaps += gaps
        self._report_replay(index, replayed, gaps)
        return index

    def discard(self) -> None:
        """Delete the index; the next `check` begins an empty one. Raises IndexCorruptError."""
        self.close()
        self._metrics.rebuilds += 1
        self._is_discarded = True
        self._note_rebuild()
        self._context.store.discard(self.identity)

    def drop_after(self, err: BaseException) -> None:
        """Delete the index after an error by which it is damaged, and close it after one of its machine."""
        if isinstance(err, IndexDisprovedError):
            self._is_disproved = True
            self.close()
        elif isinstance(err, IndexCorruptError):
            try:
                self.discard()
            except IndexCorruptError as refusal:
                self._logger.error("index cannot be deleted", error=str(refusal))
        elif isinstance(err, IndexUnavailableError):
            self.close()

    def close(self) -> None:
        """Close the index, if open."""
        if self.opened is not None:
            self.opened.close()
            self.opened = None

    async def _open(self, log_start: Offset) -> PartitionIndex:
        """Open the index, or an empty one instead of an unusable one; one lane a turn of the event loop."""
        store = self._context.store
        if self._is_disproved:
            await self._delete_disproved()
        await store.prepare(self.identity)
        index: DedupeIndex | None = None
        async with self._context.open_turn:
            try:
                index = store.open(self.identity)
            except IndexDisprovedError as err:
                if self._log_alone:
                    raise  # it was not deleted
                if store.snapshots is not None:
                    store.snapshots.doubt(self.identity, err.lineage)
                self._is_disproved = True
            except IndexCorruptError as err:
                self._logger.error("index is unusable, rebuilding it from the log", reason=str(err))
                self.discard()
                await store.prepare(self.identity)
                index = store.open(self.identity)
            if index is not None:
                opened = self.opened = PartitionIndex(
                    index,
                    self._context.window_policy,
                    self._context.session_policy,
                    log_start=log_start,
                    lost_ms=self._lost_ms,
                    lineage=self._lineage,
                )
                await asyncio.sleep(0)
                return opened
        return await self._open(log_start)  # no other lane waits while the bucket is asked

    async def _delete_disproved(self) -> None:
        """
        Delete an index that the log has disproved, after its snapshots: they may have what is wrong in it.

        Where the bucket does not answer, this process still does not use them.
        """
        self._logger.error("index is disproved, rebuilding it from the log")
        if (snapshots := self._context.store.snapshots) is not None:
            try:
                async with asyncio.timeout(WITHDRAW_S):
                    await snapshots.withdraw(self.identity)
            except (SnapshotError, TimeoutError) as err:
                self._logger.error("snapshots of a disproved index are not deleted", error=str(err))
        self._metrics.snapshot = None
        self._log_alone = True
        self.discard()
        self._is_disproved = False

    async def _rebuilt_if_needed(self, end: Offset) -> PartitionIndex:
        """Return the index, or an empty one at the window's start if it is empty or must be rebuilt."""
        index = self.opened
        assert index is not None, "check has not opened an index"
        is_empty = index.index.state.last_offset < 0
        if not is_empty:
            reason = await self._reason_to_rebuild(index, end)
            if reason is None:
                return index
            self._logger.error("index is rebuilt from the log", reason=reason)
            self.discard()  # unlike `reset`, it deletes files outside of the event loop
            index = await self._open(index.log_start)
        has_records = await self._reader.first(index.log_start, end) is not None
        if is_empty and has_records and not self._is_discarded:
            self._metrics.begun_empty += 1
            self._note_rebuild()
        self._is_discarded = False
        if await self._restore(index.log_start, end):
            assert self.opened is not None
            return self.opened
        index = self.opened or await self._open(index.log_start)
        if index.log_start == 0 and not has_records:  # not `end == 0`: Kafka's markers occupy offsets
            await self._context.session_notes.begin_log(self.partition)
        index.begin_at(*await self._reader.rebuild_start(index.log_start, end))
        return index

    def _note_rebuild(self) -> None:
        if self.rebuilding_since is None:
            self.rebuilding_since = self._context.clock.monotonic()

    async def _restore(self, log_start: Offset, end: Offset) -> bool:
        """Whether the index, which is empty, begins with a snapshot; if not, it may be closed."""
        snapshots = self._context.store.snapshots
        if snapshots is None or self._log_alone or end - log_start < snapshots.records_min:
            return False
        tries = 0
        try:
            async with aclosing(snapshots.candidates(self.identity)) as candidates:
                async for manifest in candidates:
                    if await self._is_of_log(manifest.state, log_start, end):
                        tries += 1
                        if await self._begins_with(snapshots, manifest, log_start, end):
                            return True
                    if tries == SNAPSHOT_TRIES:
                        break
        except SnapshotError as err:
            self._note_failed_snapshot(err)
        return False

    async def _is_of_log(self, state: IndexState, log_start: Offset, end: Offset) -> bool:
        """Whether a snapshot follows this log, by its last record; before anything is fetched."""
        last = await self._reader.first(max(state.last_offset, log_start), end)
        reason = reason_to_rebuild(state, last, log_start=log_start, end=end)
        if reason is not None:
            self._logger.warning("a snapshot is not of this log", reason=reason)
        return reason is None and state.last_offset >= log_start

    async def _begins_with(
        self, snapshots: SnapshotStore, manifest: Manifest, log_start: Offset, end: Offset
    ) -> bool:
        """Whether the index of a snapshot is restored and proved; else it is deleted."""
        began = self._context.clock.monotonic()
        self.close()
        self._context.store.discard(self.identity)
        lost_ms = self._lost_ms
        try:
            await snapshots.restore(manifest)
            index = await self._open(log_start)
            if index.index.state != manifest.state:
                raise SnapshotError("damaged", "its state is not what its manifest says")
            if await snapshots.is_doubted(self.identity, index.index.lineage):
                raise SnapshotError("disproved", "it is a copy of an index that the log has disproved")
            if (reason := await self._reason_to_rebuild(index, end)) is not None:
                raise SnapshotError("disproved", reason)
        except (SnapshotError, IndexCorruptError) as err:
            self._note_failed_snapshot(err)
            self.close()
            self._context.store.discard(self.identity)
            self._lost_ms = lost_ms
            return False
        self._metrics.restored_snapshots += 1
        self._metrics.snapshot = manifest
        self._logger.info(
            "index restored from a snapshot",
            snapshot=manifest.name,
            size_bytes=manifest.size_bytes,
            seconds=round(self._context.clock.monotonic() - began, 1),
            offsets_to_go=end - manifest.state.applied_offset,
        )
        return True

    def _note_failed_snapshot(self, err: SnapshotError | IndexCorruptError) -> None:
        reason = err.reason if isinstance(err, SnapshotError) else "damaged"
        failed = self._metrics.snapshots_failed
        failed[reason] = failed.get(reason, 0) + 1
        self._logger.error("the index is not restored from a snapshot", reason=reason, error=str(err))

    async def _reason_to_rebuild(self, opened: PartitionIndex, end: Offset) -> str | None:
        """
        Return why the index must be rebuilt, or None.

        Its last record proves that it follows this log. It is read after the fence, since a commit that is
        not visible yet would look like a lost one. Behind that record it has applied control records only:
        a log that lost those may have other records at their offsets.
        """
        index, log_start = opened.index, opened.log_start
        state = index.state
        last = await self._reader.first(max(state.last_offset, log_start), end)
        reason = reason_to_rebuild(state, last, log_start=log_start, end=end)
        if reason is None and await self._reader.has_records(state.last_offset + 1, state.applied_offset):
            reason = "the log holds records where it knows of none"
        if reason is not None:
            self._lost_ms = state.newest_timestamp_ms
            return reason
        if not await self._is_proved(index, log_start):
            return "it lacks records that the log has"
        oldest_ms = state.newest_timestamp_ms - self._context.session_policy.remembered_ms
        if index.session_counts.since_ms > oldest_ms:
            return "it lacks sessions of the lease"
        if index.covers(log_start):
            return None
        window = window_of(self._context.window_policy, index)
        start = window.start
        if not window.is_whole:  # the window may be longer now than the index's steps
            start = await self._reader.window_start(log_start, end)
        if not index.covers(max(start, log_start)):
            return "it lacks a part of the window"
        return None

    async def _is_proved(self, index: DedupeIndex, log_start: Offset) -> bool:
        """Whether an index that was not closed has the records before those of its write-ahead log."""
        if not index.unproved:
            return True
        for offset in index.unproved:
            before = await self._reader.last(log_start, offset)
            if before is None or not index.covers(before.offset):
                continue  # it began later; whether it lacks a part of the window is asked next
            entry = index.lookup([before.identity.key])[0]
            if entry is None or entry.offset < before.offset:
                return False
        index.note_proved()
        return True

    def _report_replay(self, index: PartitionIndex, records: int, gaps: int) -> None:
        """Log the results of a replay."""
        state = index.index.state
        if gaps:
            self._logger.error(
                "lane sequence has gaps: the log lost records, or another program writes to it", gaps=gaps
            )
        ahead_ms = state.newest_timestamp_ms - self._context.clock.now_ms()
        if ahead_ms > CLOCK_JUMP_MS:
            self._logger.error(
                "the log's newest record lies in the future: check the clocks", ahead_ms=ahead_ms
            )
        self._logger.info(
            "lane restored",
            records=records,
            applied_offset=state.applied_offset,
            next_lane_seq=state.next_lane_seq,
        )
