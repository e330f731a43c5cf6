"""
RecordReader: the committed records of one partition, each checked.

A record that no gateway of this log wrote stops its lane until an operator allows recovery to skip it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog

from dedupe.decide.lineage import Level
from dedupe.decide.recovery import CheckedRecord, PlainRecords
from dedupe.model.errors import IdentityMismatchError, LogCorruptError
from dedupe.model.inherited import place_of
from dedupe.model.record import routing_key_of
from dedupe.model.types import LogRecord, Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.metrics import LaneMetrics
from dedupe.storage.log import PartitionLog
from dedupe.storage.notes import Skips

TAIL_OFFSETS = 4
"""Offsets of the first read for the newest record; markers and aborted records may occupy some."""

SEARCH_PROBES_MAX = 24
"""The limit of reads to find a lane sequence, a few ms each; an earlier place only costs time."""


class RecordReader:
    """Reads for recovery; no method fences or writes. All raise what `read` raises."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, metrics: LaneMetrics
    ) -> None:
        self._log = partition_log
        self._partition = partition
        self._context = context
        self._metrics = metrics
        self._check = context.record_check_of(partition)
        self._lineage = context.lineage_of(partition)
        self._skips: dict[int, Skips] = {}
        self._left_out = 0  # records that are not of this lane, or skipped
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[list[CheckedRecord], None]:
        """
        Yield the records of [start, end) in batches of n >= 1; see PartitionLog.read.

        Raises:
            RetriableError: the log cannot be read now.
            LogCorruptError: no gateway of this log wrote a record. Final until an operator acts.
        """
        async with aclosing(self._log.read(start, end, records_max=records_max)) as batches:
            async for records in batches:
                checked = await self._checked(records)
                if checked:
                    yield checked

    async def first(self, start: Offset, end: Offset) -> CheckedRecord | None:
        """Return the first record of [start, end), or None."""
        left_out = self._left_out
        async with aclosing(self.read(start, end, records_max=1)) as batches:
            async for records in batches:
                return records[0]
        if self._left_out > left_out:
            async with aclosing(self.read(start, end)) as batches:
                async for records in batches:
                    return records[0]
        return None

    async def has_records(self, start: Offset, end: Offset) -> bool:
        """Return whether [start, end) begins with a record of ours, control records left out."""
        if start >= end:
            return False
        try:
            return await self.first(start, end) is not None
        except (LogCorruptError, IdentityMismatchError):  # passed over once, as an operator decided
            return False

    async def last(self, start: Offset, end: Offset) -> CheckedRecord | None:
        """Return the last record of [start, end), or None."""
        for first, behind in reversed(self._ranges(start, end)):
            span, low, last = TAIL_OFFSETS, behind, None
            while last is None and low > first:
                low = max(first, behind - span)
                async with aclosing(self.read(low, behind)) as batches:
                    async for records in batches:
                        last = records[-1]
                span *= 8
            if last is not None:
                return last
        return None

    async def rebuild_start(self, start: Offset, end: Offset) -> tuple[Offset, int]:
        """
        Return where a rebuild must begin.

        Returns:
            An offset of [start, end], and SessionCounts.since_ms of an index that begins there.
        """
        newest = await self.last(start, end)
        if newest is None:
            return start, 0
        window_start = await self.window_start(start, end)
        notes = self._context.session_notes
        if self._lineage is None and not await notes.may_have(self._partition):
            return window_start, 0
        since_ms = newest.timestamp_ms - self._context.session_policy.remembered_ms
        first = min(window_start, await self._log.offset_at(since_ms)) if since_ms > 0 else start
        return (first, since_ms) if first > start else (start, 0)

    async def window_start(self, start: Offset, end: Offset) -> Offset:
        """
        Return an offset of [start, end] at or below the window's start.

        A rebuild that begins there has the same window as a replay of the whole log.
        """
        newest = await self.last(start, end)
        if newest is None:
            return start
        policy = self._context.window_policy
        by_time = max(start, await self._log.offset_at(policy.first_kept_ms(newest.timestamp_ms)))
        oldest = await self.first(by_time, end)
        first_kept_seq = policy.first_kept_seq(newest.identity.lane_seq)
        if oldest is None or oldest.identity.lane_seq >= first_kept_seq:
            return min(by_time, newest.offset)
        return await self._offset_of_seq(first_kept_seq - 1, oldest, newest)  # several may count as the first

    async def _offset_of_seq(self, seq: int, low: CheckedRecord, high: CheckedRecord) -> Offset:
        """Return the offset of a record at or shortly before a lane sequence, between two records."""
        for start, end in self._ranges(low.offset, high.offset)[:0:-1]:  # the log that has it
            first = await self.first(start, end)
            if first is not None and first.identity.lane_seq <= seq:
                low = first
                break
            high = await self.last(low.offset, start) or low
        enough = max(1, (high.identity.lane_seq - seq) // 16)
        for _ in range(SEARCH_PROBES_MAX):
            missing, span = seq - low.identity.lane_seq, high.identity.lane_seq - low.identity.lane_seq
            if missing <= enough or span <= 1:
                break
            guess = low.offset + max(1, (high.offset - low.offset) * missing // span)
            probe = await self.first(guess, high.offset + 1)
            if probe is None or probe.offset >= high.offset:
                break
            if probe.identity.lane_seq <= seq:
                low = probe
            else:
                high = probe
        return low.offset

    async def _checked(self, records: Sequence[LogRecord]) -> list[CheckedRecord]:
        if isinstance(records, PlainRecords) and (plain := self._check.checked_plain(records)) is not None:
            return self._of_lane(plain)
        checked = []
        for record in records:
            try:
                checked.append(self._check.checked(record))
            except (LogCorruptError, IdentityMismatchError) as err:
                await self._skip(*place_of(self._partition, record.offset), err)
        return self._of_lane(checked)

    def _ranges(self, start: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """Return the part of [start, end) that each log has, oldest first."""
        return [(start, end)] if self._lineage is None else list(self._lineage.ranges(start, end))

    def _of_lane(self, records: list[CheckedRecord]) -> list[CheckedRecord]:
        """Return the records, all of one log, as the lane has them, without those of other slots."""
        level = self._lineage and records and self._lineage.level_at(records[0].offset)
        if not level:
            return records
        own = [_inherited(record, level) for record in records]
        kept = [record for record in own if record is not None]
        self._left_out += len(records) - len(kept)
        return kept

    async def _skip(
        self, partition: int, offset: Offset, err: LogCorruptError | IdentityMismatchError
    ) -> None:
        """Skip a record if an operator has allowed it; raise its error otherwise."""
        if offset not in self._skips.get(partition, Skips()):
            self._skips[partition] = await self._context.load_skips(partition)
        if offset in self._skips[partition]:
            self._left_out += 1
            self._metrics.skipped_records += 1
            self._logger.warning("record skipped, as an operator decided", offset=offset, reason=str(err))
            return
        raise LogCorruptError(
            f"offset {offset} of partition {partition} of {self._context.topic} has a record of "
            f"another program ({err}). Read it; if it may be skipped: gateway partitions skip "
            f"{partition} {offset} --topic {self._context.topic}"
        ) from err


def _inherited(record: CheckedRecord, level: Level) -> CheckedRecord | None:
    """
    Return a record of another piece as the heir has it; None if it is of another slot.

    It evicts no sessions but the heir's own. What records of other slots evict is not heard of: such a
    session stays known for longer.
    """
    identity = record.identity
    if not level.has(routing_key_of(identity)):
        return None
    lane_seq = max(identity.lane_seq + level.shift, level.lane_seq_min)
    timestamp_ms = max(record.timestamp_ms, level.timestamp_min_ms)
    if not identity.evicted and (lane_seq, timestamp_ms) == (identity.lane_seq, record.timestamp_ms):
        return record
    evicted = tuple(key for key in identity.evicted if level.has(key))
    return record._replace(
        timestamp_ms=timestamp_ms, identity=identity._replace(lane_seq=lane_seq, evicted=evicted)
    )
