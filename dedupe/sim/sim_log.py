"""
A log in memory that behaves like Kafka, fails on demand, and outlives the "processes" of a test.

An append occupies n + 1 offsets (the last one is its marker), aborted transactions leave gaps,
readers stop at the last stable offset, which may follow a commit late, and a fence aborts what the
zombie has open. Every fault is drawn from one seeded generator (dedupe.sim.faults), so a failing test
is repeated by its seed. No thread, no disk, no time but the loop's.

Lane.submit -> admit -> **PartitionLog.append** -> DedupeIndex.apply
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import structlog

from dedupe.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.log import NOTE_BYTES_MAX, Crashpoint, no_crashpoint
from dedupe.sim.faults import NO_FAULTS, OnFault, SimDice, SimFaults, ignore_fault
from dedupe.types import LogRecord, NewRecord, Offset

READ_RECORDS_MAX = 100
"""One batch of a read. Small, so that tests of moderate size see several."""

OUTAGE_CALLS_MAX = 4
HANG_S = 0.05
"""How long a call hangs before it counts as not answered: long beside every pause of a simulated lane."""


@dataclass(slots=True)
class OpenTransaction:
    """Records that have their offsets but are not decided."""

    epoch: int
    base: Offset
    records: Sequence[NewRecord]
    is_commit_under_way: bool = False


class SimPartition:
    """One partition as its broker sees it. Tests may call everything here."""

    def __init__(self) -> None:
        """Make it empty."""
        self.epoch = 0
        self.log_start: Offset = 0
        self.end: Offset = 0
        self.records: list[LogRecord] = []  # committed ones only
        self.open: OpenTransaction | None = None
        self.marker_due: Offset | None = None  # committed from here on, but readers cannot see it yet
        self.outage_calls = 0  # so many calls are not taken
        self.refused_appends = 0  # so many appends are not taken

    @property
    def last_stable_offset(self) -> Offset:
        """All offsets below it are decided, and readers see them."""
        if self.marker_due is not None:
            return self.marker_due
        return self.end if self.open is None else self.open.base

    def fence(self) -> int:
        """Begin an epoch and return it; an open transaction is aborted, all markers are written."""
        self.marker_due = None
        if self.open is not None:
            self._decide()
        self.epoch += 1
        return self.epoch

    def begin(self, epoch: int, records: Sequence[NewRecord]) -> Offset:
        """Put the records into a new transaction and return the first one's offset. Raises FencedError."""
        self._check(epoch)
        assert self.open is None, "one writer has one transaction at a time"
        self.open = OpenTransaction(epoch, self.end, records)
        self.end += len(records)
        return self.open.base

    def delay_commit(self, epoch: int) -> None:
        """Have the epoch's commit under way: it arrives before a later call, or a fence is quicker."""
        if self.open is not None and self.open.epoch == epoch:
            self.open.is_commit_under_way = True

    def commit(self, epoch: int) -> None:
        """Commit the epoch's open transaction. Raises FencedError, or NotAppendedError if it is gone."""
        self._check(epoch)
        decided = self._decide()
        self.records += [LogRecord(decided.base + i, *record) for i, record in enumerate(decided.records)]

    def abort(self, epoch: int) -> None:
        """Abort the epoch's open transaction: its offsets stay empty. Raises as `commit` does."""
        self._check(epoch)
        self._decide()

    def intrude(self, record: NewRecord) -> Offset:
        """Commit a record of somebody who is no gateway, without a marker; return its offset."""
        assert self.open is None
        self.records.append(LogRecord(self.end, *record))
        self.end += 1
        return self.end - 1

    def between(self, start: Offset, end: Offset) -> list[LogRecord]:
        """Return the committed records of [start, end)."""
        low, high = (bisect_left(self.records, at, key=attrgetter("offset")) for at in (start, end))
        return self.records[low:high]

    def offset_at(self, timestamp_ms: int) -> Offset:
        """Return the end of the last record before the first that is as new, as markers make Kafka do."""
        at = self.log_start
        for record in self.between(at, self.last_stable_offset):
            if record.timestamp_ms >= timestamp_ms:
                return at
            at = record.offset + 1
        return self.last_stable_offset

    def trim(self, log_start: Offset) -> None:
        """Forget everything below an offset, as retention does; what is undecided stays."""
        self.log_start = max(self.log_start, min(log_start, self.last_stable_offset))
        self.records = self.between(self.log_start, self.end)

    def lose_tail(self, records: int) -> None:
        """Lose the last committed records and all after them: their offsets are given out again."""
        assert 0 < records <= len(self.records)
        self.open = self.marker_due = None
        self.end = self.records[-records].offset
        del self.records[-records:]

    def _check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise FencedError(f"producer epoch {epoch} is over, {self.epoch} has begun")

    def _decide(self) -> OpenTransaction:
        """Close the open transaction with a marker."""
        decided, self.open = self.open, None
        if decided is None:
            raise NotAppendedError("the log has lost the open transaction")
        self.end += 1
        return decided


class SimStore:
    """All partitions of the simulated log, as one process is connected to it."""

    def __init__(
        self,
        faults: SimFaults = NO_FAULTS,
        *,
        log_id: str = "sim",
        crashpoint: Crashpoint = no_crashpoint,
        on_fault: OnFault = ignore_fault,
    ) -> None:
        """
        Make an empty log.

        Args:
            faults: what goes wrong, from the start; `dice.faults` changes it.
            log_id: what tells this log from others.
            crashpoint: called in `append`. An exception leaves the log as a crash right there would.
            on_fault: told of every fault that befalls this connection's calls of partitions.
        """
        self.dice = SimDice(faults)
        self.on_fault = on_fault
        self.crashpoint = crashpoint
        self.is_available = True
        self._log_id = log_id
        self._partitions: dict[str, list[SimPartition]] = {}
        self._notes: dict[tuple[str, str], dict[int, str]] = {}

    def another(
        self, *, crashpoint: Crashpoint = no_crashpoint, on_fault: OnFault = ignore_fault
    ) -> "SimStore":
        """Return another process's connection to the same log."""
        other = SimStore(log_id=self._log_id, crashpoint=crashpoint, on_fault=on_fault)
        other.dice = self.dice
        other._partitions = self._partitions
        other._notes = self._notes
        return other

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic that does not exist yet."""
        assert topic not in self._partitions
        self._partitions[topic] = [SimPartition() for _ in range(partitions)]

    def partition(self, topic: str, partition: int) -> SimPartition:
        """Return the broker's side of a partition."""
        return self._partitions[topic][partition]

    def noted(self, name: str, topic: str) -> dict[int, str]:
        """Return the log's own notes of this name, to look at and to change."""
        return self._notes.setdefault((name, topic), {})

    def forget_notes(self) -> None:
        """Lose all notes, as Kafka does when they are not renewed for a week."""
        self._notes.clear()

    def lose_tail(self, topic: str, partition: int, records: int) -> None:
        """Lose the last n >= 1 committed records, as a broker that had not synced them."""
        self.partition(topic, partition).lose_tail(records)

    def trim(self, topic: str, partition: int, log_start: Offset) -> None:
        """Forget everything below an offset, as retention does."""
        self.partition(topic, partition).trim(log_start)

    @property
    def log_id(self) -> str:
        """See LogStore."""
        return self._log_id

    async def partitions_of(self, topic: str) -> int:
        """See LogStore."""
        await self._reach()
        return len(self._partitions.get(topic, ()))

    def partition_log(self, topic: str, partition: int) -> "SimLog":
        """See LogStore."""
        return SimLog(self, topic, partition)

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        """See LogStore."""
        await self._reach()
        self._fail_at_random(self.dice.faults.unavailable)
        return dict(self._notes.get((name, topic), {}))

    async def note(self, name: str, topic: str, partition: int, text: str) -> None:
        """See LogStore."""
        assert partition < len(self._partitions[topic])
        assert len(text.encode()) <= NOTE_BYTES_MAX
        await self._reach()
        self._fail_at_random(self.dice.faults.unavailable)
        self._notes.setdefault((name, topic), {})[partition] = text
        await self.dice.step()
        self._fail_at_random(self.dice.faults.lose_reply)

    async def close(self) -> None:
        """See LogStore. The log itself stays."""

    async def _reach(self) -> None:
        await self.dice.step()
        if not self.is_available:
            raise RetriableError("the simulated log is unavailable")

    def _fail_at_random(self, probability: float) -> None:
        if self.dice.says(probability):
            raise RetriableError("simulated: no answer about notes")


class SimLog:
    """One partition of a SimStore. See PartitionLog."""

    def __init__(self, store: SimStore, topic: str, partition: int) -> None:
        """Use `SimStore.partition_log`."""
        self._store = store
        self._dice = store.dice
        self._topic = topic
        self._number = partition
        self._partition = store.partition(topic, partition)
        self._epoch: int | None = None
        self._expected: Offset = 0
        self._report = structlog.get_logger(__name__).bind(topic=topic, partition=partition)
        self.pause_after_append_s = 0.0

    async def fence(self) -> Offset:
        """See PartitionLog."""
        self._epoch = None
        await self._call(RetriableError)
        epoch = self._partition.fence()
        end = self._expected = self._partition.last_stable_offset
        await self._dice.step()
        if self._strikes("lose_reply"):
            raise RetriableError("simulated: the fence was not answered")
        self._epoch = epoch
        return end

    async def bounds(self) -> tuple[Offset, Offset]:
        """See PartitionLog."""
        await self._call(RetriableError)
        return self._partition.log_start, self._partition.last_stable_offset

    async def offset_at(self, timestamp_ms: int) -> Offset:
        """See PartitionLog."""
        await self._call(RetriableError)
        return self._partition.offset_at(timestamp_ms)

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        """See PartitionLog."""
        position, left = start, end - start if records_max is None else records_max
        while position < end and left > 0:
            await self._call(RetriableError)
            partition = self._partition
            if position < partition.log_start:
                self._report.warning(
                    "reading from the log start", asked=position, log_start=partition.log_start
                )
            found = partition.between(position, min(end, partition.last_stable_offset))
            batch = found[: min(READ_RECORDS_MAX, left)]
            if not batch:
                return
            yield batch
            position, left = batch[-1].offset + 1, left - len(batch)

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        """See PartitionLog."""
        # Whatever interrupts this append, a cancellation included: the next one needs a fence.
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            raise NotAppendedError("this writer has not fenced the partition since its last error")
        await self._call(NotAppendedError)
        self._check_room()
        if self._strikes("rival"):
            self._partition.fence()
        base = self._begin(epoch, records)
        self._store.crashpoint("append")
        await self._dice.step()
        self._commit(epoch)
        self._store.crashpoint("commit")
        await self._dice.step()
        if self._strikes("hang"):
            await asyncio.sleep(HANG_S)
            raise OutcomeUnknownError("simulated: the commit was not answered in time")
        if self._strikes("lose_reply"):
            raise OutcomeUnknownError("simulated: the commit was not answered")
        self._epoch, self._expected = epoch, base + len(records) + 1
        return base

    async def close(self) -> None:
        """See PartitionLog. Idempotent."""
        self._epoch = None

    def _begin(self, epoch: int, records: Sequence[NewRecord]) -> Offset:
        base = self._partition.begin(epoch, list(records))
        if base < self._expected:  # the leader misses what this writer has sent before
            self._partition.abort(epoch)
            raise NotAppendedError(f"the records landed at offset {base} instead of {self._expected}")
        if base > self._expected:
            self._partition.commit(epoch)
            raise OutcomeUnknownError(f"the records landed at offset {base} instead of {self._expected}")
        return base

    def _commit(self, epoch: int) -> None:
        if self._strikes("abort"):
            self._partition.abort(epoch)
            raise NotAppendedError("simulated: the transaction was aborted")
        if self._strikes("delay_commit"):
            self._partition.delay_commit(epoch)
            raise OutcomeUnknownError("simulated: the commit is still under way")
        base = self._partition.last_stable_offset
        self._partition.commit(epoch)
        if self._strikes("delay_marker"):
            self._partition.marker_due = base

    async def _call(self, refusal: type[RetriableError]) -> None:
        """Reach the broker, or raise `refusal`. What is still under way there may arrive just before."""
        await self._dice.step()
        partition, dice = self._partition, self._dice
        if self._strikes("hang"):
            await asyncio.sleep(HANG_S)
            raise refusal("simulated: no answer in time")
        if self._strikes("unavailable"):
            partition.outage_calls = dice.count(OUTAGE_CALLS_MAX)
        if partition.outage_calls > 0:
            partition.outage_calls -= 1
            raise refusal("simulated: the log is unavailable")
        if self._strikes("leak_cancel"):
            raise asyncio.CancelledError
        if not self._store.is_available:
            raise refusal("the simulated log is unavailable")
        if partition.marker_due is not None and dice.says(0.5):
            partition.marker_due = None
        if partition.open is not None and partition.open.is_commit_under_way and dice.says(0.5):
            partition.commit(partition.open.epoch)

    def _check_room(self) -> None:
        """Raise NotAppendedError while the broker's disk takes nothing."""
        if self._strikes("log_full"):
            self._partition.refused_appends = self._dice.count(OUTAGE_CALLS_MAX)
        if self._partition.refused_appends > 0:
            self._partition.refused_appends -= 1
            raise NotAppendedError("simulated: the log's disk is full")

    def _strikes(self, fault: str) -> bool:
        """Whether a fault happens now."""
        strikes = self._dice.says(getattr(self._dice.faults, fault))
        if strikes:
            self._store.on_fault(fault, self._topic, self._number)
        return strikes
