"""
A log in memory that behaves like Kafka, fails on demand, and outlives the "processes" of a test.

An append is one request: it arrives whole, late or never, and a fence that is quicker refuses it for ever. A
fence takes one offset, its marker's; readers stop at the high watermark, which may follow an append late.
Every fault is drawn from one seeded generator (tests.support.sim.faults), so a failing test
is repeated by its seed. No thread, no disk, no time but the loop's.

Lane.submit -> admit -> **PartitionLog.append** -> DedupeIndex.apply
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import structlog

from dedupe.model.errors import (
    FencedError,
    NotAppendedError,
    OutcomeUnknownError,
    RecordsRefusedError,
    RetriableError,
)
from dedupe.model.types import LogRecord, NewRecord, Offset
from dedupe.storage.fencing_appender import FencingAppender
from dedupe.storage.kept_fences import KeptFences
from dedupe.storage.log import NOTE_BYTES_MAX, Crashpoint, no_crashpoint
from dedupe.storage.notes import BEGUN_EMPTY, SESSIONS
from tests.support.sim.faults import NO_FAULTS, OnFault, SimDice, SimFaults, ignore_fault
from tests.support.sim.log_times import LogTimes, Span

READ_RECORDS_MAX = 100
"""One batch of a read. Small, so that tests of moderate size see several."""

OUTAGE_CALLS_MAX = 4
LEADER = "broker"
ANSWER_S, ASK_S = 8.0, 2.5
"""How long a process waits for an answer of a leader that gives none: to an append, and to a question."""
SENT_AGAIN_S = 0.25
HANG_S = 0.05
"""How long a call hangs before it counts as not answered: long beside every pause of a simulated lane."""


@dataclass(slots=True)
class Request:
    """A batch of records on its way to the leader."""

    epoch: int
    expected: Offset
    """Behind what its writer has sent before; a leader that lacks some of it sees a gap of sequences."""
    records: Sequence[NewRecord]
    base: Offset | None = None  # once it is in the log


class SimFence(NamedTuple):
    """A fence that a log leaves to the next one, see KeptFences."""

    epoch: int
    end: Offset
    incarnation: int
    decisions: Sequence[LogRecord]

    def close(self) -> None:
        """There is nothing to release."""


class SimPartition:
    """One partition as its broker sees it. Tests may call everything here."""

    def __init__(self) -> None:
        """Make it empty."""
        self.epoch = 0
        self.log_start: Offset = 0
        self.end: Offset = 0
        self.records: list[LogRecord] = []
        self.bases: set[Offset] = set()  # the first offset of each batch
        self.in_flight: Request | None = None  # sent, and not arrived
        self.hidden_from: Offset | None = None  # readers do not see yet what is from here on
        self.outage_calls = 0  # so many calls are not taken
        self.is_stuck = False  # its replicas do not answer, and so no append is answered
        self.replicas_s = 0.0  # how long they take, so that each append is answered as late
        self.refused_appends = 0  # so many appends are not taken
        self.record_bytes_max: int | None = None  # of a batch, keys and values
        self.refuses: Callable[[NewRecord], bool] = lambda _record: False  # for its content
        self.incarnation = 0  # of the topic

    @property
    def high_watermark(self) -> Offset:
        """Readers see all records below it."""
        return self.end if self.hidden_from is None else self.hidden_from

    def fence(self) -> int:
        """Begin an epoch and return it; what is in flight never arrives, and the marker is seen by all."""
        return self.mark(self.epoch + 1)

    def mark(self, epoch: int) -> int:
        """Have the marker of a later epoch; return the epoch."""
        assert epoch > self.epoch
        self.hidden_from = self.in_flight = None
        self.end += 1
        self.epoch = epoch
        return epoch

    def send(self, request: Request) -> None:
        """Have a request on its way: a later call finds it in the log, or a fence is quicker."""
        self.in_flight = request

    def arrive(self, request: Request) -> Offset:
        """
        Append a request's records unless they are there; return the first one's offset.

        Raises:
            FencedError: a later epoch has begun.
            NotAppendedError: the leader has lost what the same writer had sent before.
        """
        if self.in_flight is request:
            self.in_flight = None
        if request.base is None:
            if request.epoch != self.epoch:
                raise FencedError(f"producer epoch {request.epoch} is over, {self.epoch} has begun")
            if self.end < request.expected:
                raise NotAppendedError(f"the log ends at {self.end} and not at {request.expected}")
            request.base = self._append(request.records)
        return request.base

    def begin_anew(self) -> None:
        """Be another, empty topic of the same name; whoever writes to it is unknown to it."""
        incarnation, limit = self.incarnation, self.record_bytes_max
        self.__init__()  # type: ignore[misc]
        self.incarnation, self.record_bytes_max = incarnation + 1, limit

    def intrude(self, record: NewRecord) -> Offset:
        """Append a record of somebody who is no gateway; return its offset."""
        return self._append([record])

    def between(self, start: Offset, end: Offset) -> list[LogRecord]:
        """Return the committed records of [start, end)."""
        low, high = (bisect_left(self.records, at, key=attrgetter("offset")) for at in (start, end))
        return self.records[low:high]

    def offset_at(self, timestamp_ms: int) -> Offset:
        """Return the end of the last record before the first that is as new, as markers make Kafka do."""
        at = self.log_start
        for record in self.between(at, self.high_watermark):
            if record.timestamp_ms >= timestamp_ms:
                return at
            at = record.offset + 1
        return self.high_watermark

    def trim(self, log_start: Offset) -> None:
        """Forget everything below an offset, as retention does."""
        self.log_start = max(self.log_start, min(log_start, self.high_watermark))
        self.records = self.between(self.log_start, self.end)

    def lose_tail(self, records: int) -> None:
        """Lose the last records and all after them: their offsets are given out again."""
        assert 0 < records <= len(self.records)
        self.in_flight = self.hidden_from = None
        self.end = self.records[-records].offset
        del self.records[-records:]

    def _append(self, records: Sequence[NewRecord]) -> Offset:
        base = self.end
        self.records += [LogRecord(base + i, *record) for i, record in enumerate(records)]
        self.bases.add(base)
        self.end += len(records)
        return base


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
            faults: what goes wrong, from the start; `rng.faults` changes it.
            log_id: what tells this log from others.
            crashpoint: called in `append`. An exception leaves the log as a crash right there would.
            on_fault: told of every fault that befalls this connection's calls of partitions.
        """
        self.rng = SimDice(faults)
        self.fences: KeptFences[SimFence] = KeptFences()
        self.on_fault = on_fault
        self.crashpoint = crashpoint
        self.is_available = True
        self.silent: set[str] = set()
        """Leaders that answer nothing of this connection; what is sent there never arrives."""
        self.drops_large: set[str] = set()
        """Leaders to which large packets of this connection vanish: appends, and probes."""
        self.latency_s: dict[str, float] = {}
        """How long each answer of a leader takes."""
        self.routing_topic: Any = None  # of a process that knows of plans
        self.times = LogTimes()
        """How long everybody's answers take."""
        self.leaders: dict[tuple[str, int], str] = {}
        """Of partitions, for all connections; the others have LEADER."""
        self._log_id = log_id
        self._partitions: dict[str, list[SimPartition]] = {}
        self._notes: dict[tuple[str, str], dict[int, str]] = {}
        self.decisions: dict[tuple[str, int], SimPartition] = {}
        """The partitions beside those whose owners decide."""
        self.epochs: dict[tuple[str, int], int] = {}
        """The newest epoch that was given out of each of these."""

    def another(
        self, *, crashpoint: Crashpoint = no_crashpoint, on_fault: OnFault = ignore_fault
    ) -> "SimStore":
        """Return another process's connection to the same log."""
        other = SimStore(log_id=self._log_id, crashpoint=crashpoint, on_fault=on_fault)
        other.rng = self.rng
        other._partitions = self._partitions
        other._notes = self._notes
        other.decisions = self.decisions
        other.epochs = self.epochs
        other.leaders = self.leaders
        other.times = self.times
        return other

    def mend(self) -> None:
        """Undo whatever is wrong with this connection."""
        self.is_available = True
        self.silent.clear()
        self.drops_large.clear()
        self.latency_s.clear()

    def reach_as(self, other: "SimStore") -> None:
        """Suffer what is wrong with another connection: the path is the machine's, not the process's."""
        self.is_available = other.is_available
        self.silent, self.drops_large = set(other.silent), set(other.drops_large)
        self.latency_s = dict(other.latency_s)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic that does not exist yet."""
        assert topic not in self._partitions
        self._partitions[topic] = [SimPartition() for _ in range(partitions)]

    def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic more partitions, up to a count."""
        own = self._partitions[topic]
        own += [SimPartition() for _ in range(len(own), count)]

    def partition(self, topic: str, partition: int) -> SimPartition:
        """Return the broker's side of a partition."""
        return self._partitions[topic][partition]

    def noted(self, name: str, topic: str) -> dict[int, str]:
        """Return the log's own notes of this name, to look at and to change."""
        return self._notes.setdefault((name, topic), {})

    def forget_sessions(self, topic: str) -> None:
        """Say nothing of sessions, as a log that was adopted does."""
        for name in (BEGUN_EMPTY, SESSIONS):
            self.noted(name, topic).clear()

    def lose_tail(self, topic: str, partition: int, records: int) -> None:
        """Lose the last n >= 1 committed records, as a broker that had not synced them."""
        self.partition(topic, partition).lose_tail(records)

    def trim(self, topic: str, partition: int, log_start: Offset) -> None:
        """Forget everything below an offset, as retention does."""
        self.partition(topic, partition).trim(log_start)

    @property
    def log_id(self) -> str:
        return self._log_id

    async def partitions_of(self, topic: str) -> int:
        await self._reach()
        return len(self._partitions.get(topic, ()))

    def partition_log(self, topic: str, partition: int) -> "SimLog":
        return SimLog(self, topic, partition)

    def deciding_log(self, topic: str, partition: int) -> "SimDecidingLog":
        return SimDecidingLog(self, topic, partition)

    def release_fence(self, topic: str, partition: int) -> None:
        """See DividedStore."""
        self.fences.release((topic, partition))

    def appender(self, topic: str) -> FencingAppender:
        return FencingAppender(self.partition_log(topic, 0))

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        await self._reach()
        self._fail_at_random(self.rng.faults.unavailable)
        return dict(self._notes.get((name, topic), {}))

    async def note(self, name: str, topic: str, partition: int, text: str, *, once: bool = False) -> None:
        assert partition < len(self._partitions[topic])
        assert len(text.encode()) <= NOTE_BYTES_MAX
        await self._reach()
        self._fail_at_random(self.rng.faults.unavailable)
        if not (once and partition in self.noted(name, topic)):
            self.noted(name, topic)[partition] = text
        await self.rng.step()
        self._fail_at_random(self.rng.faults.lose_reply)

    async def close(self) -> None:
        """See LogStore. The log itself stays."""
        self.fences.end()

    async def pass_time(self, span: Span, share: float = 1.0) -> None:
        """Let a share of a drawn time pass."""
        if (taken_s := share * self.rng.seconds(*span)) > 0:
            await asyncio.sleep(taken_s)

    async def _reach(self) -> None:
        await self.pass_time(self.times.ask)
        await self.rng.step()
        if not self.is_available:
            raise RetriableError("the simulated log is unavailable")

    def _fail_at_random(self, probability: float) -> None:
        if self.rng.says(probability):
            raise RetriableError("simulated: no answer about notes")


class SimLog:
    """One partition of a SimStore. See PartitionLog."""

    def __init__(self, store: SimStore, topic: str, partition: int) -> None:
        self._store = store
        self._rng = store.rng
        self._topic = topic
        self._number = partition
        self._partition = store.partition(topic, partition)
        self._epoch: int | None = None
        self._expected: Offset = 0
        self._incarnation = 0
        self._seen_end: Offset | None = None
        self.decisions: Sequence[LogRecord] = ()
        self._logger = structlog.get_logger(__name__).bind(topic=topic, partition=partition)
        self.pause_after_append_s = self.throttled_s = 0.0

    async def fence(self) -> Offset:
        if self._takes_fence():
            return self._expected
        await self._call(RetriableError, self._store.times.fence, 1 / 2)
        self._incarnation = self._partition.incarnation
        epoch = self._partition.fence()
        end = self._expected = self._partition.high_watermark
        await self._store.pass_time(self._store.times.fence, 1 / 2)
        await self._rng.step()
        if self._strikes("lose_reply"):
            raise RetriableError("simulated: the fence was not answered")
        self._epoch = epoch
        return end

    async def has_same_topic(self) -> bool:
        await self._call(RetriableError)
        return self._partition.incarnation == self._incarnation

    async def bounds(self) -> tuple[Offset, Offset]:
        await self._call(RetriableError)
        self._seen_end = self._partition.high_watermark
        return self._partition.log_start, self._seen_end

    async def offset_at(self, timestamp_ms: int) -> Offset:
        await self._call(RetriableError)
        return self._partition.offset_at(timestamp_ms)

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        position, left = start, end - start if records_max is None else records_max
        while position < end and left > 0:
            await self._call(RetriableError)
            partition = self._partition
            if position < partition.log_start:
                self._logger.warning(
                    "reading from the log start", asked=position, log_start=partition.log_start
                )
            found = partition.between(position, min(end, partition.high_watermark))
            batch = found[: min(READ_RECORDS_MAX, left)]
            if not batch:
                return
            yield batch
            position, left = batch[-1].offset + 1, left - len(batch)

    async def record_at(self, offset: Offset) -> LogRecord | None:
        await self._call(RetriableError)
        if offset >= self._partition.log_start:
            for record in self._partition.between(offset, min(offset + 1, self._partition.high_watermark)):
                return record
        return None

    @property
    def leader(self) -> str:
        return self._store.leaders.get((self._topic, self._number), LEADER)

    async def probe(self) -> None:
        await self._send_large(RetriableError)
        await asyncio.sleep(self._store.latency_s.get(self.leader, 0.0))
        if not self._store.is_available:
            raise RetriableError("the simulated log is unavailable")

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        # Whatever interrupts this append, a cancellation included: the next one needs a fence.
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            raise NotAppendedError("this writer has not fenced the partition since its last error")
        await self._send_large(OutcomeUnknownError)
        await self._call(NotAppendedError, self._store.times.produce, 1 / 2)
        self._check_room()
        if self._strikes("rival"):
            self._partition.fence()
        if self._strikes("refuse"):
            raise NotAppendedError("simulated: the leader refused the batch")
        self._check_records(records, epoch)
        request = Request(epoch, self._expected, list(records))
        self._partition.send(request)
        self._store.crashpoint("append")
        await self._rng.step()
        if self._strikes("delay_append"):
            raise OutcomeUnknownError("simulated: the batch is still under way")
        base = self._partition.arrive(request)
        if self._strikes("delay_sight"):
            self._partition.hidden_from = base
        self._store.crashpoint("commit")
        await self._store.pass_time(self._store.times.produce, 1 / 2)
        await self._rng.step()
        if self._partition.replicas_s:
            await asyncio.sleep(self._partition.replicas_s)
        await self._answer_late()
        if base > self._expected:
            raise OutcomeUnknownError(f"the records landed at offset {base} instead of {self._expected}")
        self._epoch, self._expected = epoch, base + len(records)
        return base

    async def close(self) -> None:
        """See PartitionLog. Idempotent."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None and self._store.fences.is_keeping:
            fence = SimFence(epoch, self._expected, self._incarnation, self.decisions)
            self._store.fences.leave((self._topic, self._number), fence)

    def _takes_fence(self) -> bool:
        """Whether the partition's last log has left its fence to this one."""
        self._epoch = None
        kept = self._store.fences.take((self._topic, self._number))
        if kept is None or self._seen_end not in (None, kept.end):
            return False
        self._epoch, self._expected, self._incarnation, self.decisions = kept
        self._partition.hidden_from = None  # readers wait until they see all that was answered
        return True

    async def _answer_late(self) -> None:
        """Raise OutcomeUnknownError where the answer to an append is late or lost."""
        if self._strikes("hang"):
            await asyncio.sleep(HANG_S)
            raise OutcomeUnknownError("simulated: the append was not answered in time")
        if self._strikes("lose_reply"):
            raise OutcomeUnknownError("simulated: the append was not answered")

    def _check_records(self, records: Sequence[NewRecord], epoch: int) -> None:
        """Raise RecordsRefusedError for their size or content: the epoch stands."""
        if self._partition.epoch != epoch:
            return  # an owner that is fenced hears that
        limit = self._partition.record_bytes_max
        size_bytes = sum(len(record.key) + len(record.value) for record in records)
        is_for_size = limit is not None and size_bytes > limit
        if is_for_size or any(map(self._partition.refuses, records)):
            self._epoch = epoch
            raise RecordsRefusedError(f"simulated: no batch of {size_bytes} bytes", is_for_size=is_for_size)

    async def _send_large(self, err: type[RetriableError]) -> None:
        def is_lost() -> bool:
            is_stuck = self._partition.is_stuck and err is OutcomeUnknownError
            return is_stuck or self.leader in self._store.drops_large | self._store.silent

        await self._pass(is_lost, err)

    async def _pass(self, is_lost: Callable[[], bool], err: type[RetriableError]) -> None:
        """Be sent again until it arrives, as packets are; raise after the limit or once another one leads."""
        leader, limit_s = self.leader, ANSWER_S if err is OutcomeUnknownError else ASK_S
        for _ in range(int(limit_s / SENT_AGAIN_S)):
            if not is_lost():
                return
            await asyncio.sleep(SENT_AGAIN_S)
            if self.leader != leader:
                break
        if err is OutcomeUnknownError:
            raise OutcomeUnknownError("simulated: the append was not answered", is_unanswered=True)
        raise err("simulated: no answer in time")

    async def _call(
        self, refusal: type[RetriableError], takes: Span | None = None, share: float = 1.0
    ) -> None:
        """
        Reach the broker, or raise `refusal`. What is still under way there may arrive just before.

        It takes a share of a drawn time, that of a question unless another one is given.
        """
        await self._rng.step()
        await self._store.pass_time(self._store.times.ask if takes is None else takes, share)
        if self._store.latency_s:
            await asyncio.sleep(self._store.latency_s.get(self.leader, 0.0))
        err = OutcomeUnknownError if refusal is NotAppendedError else refusal
        await self._pass(lambda: self.leader in self._store.silent, err)
        partition, rng = self._partition, self._rng
        if self._strikes("hang"):
            await asyncio.sleep(HANG_S)
            raise refusal("simulated: no answer in time")
        if self._strikes("unavailable"):
            partition.outage_calls = rng.count(OUTAGE_CALLS_MAX)
        if partition.outage_calls > 0:
            partition.outage_calls -= 1
            raise refusal("simulated: the log is unavailable")
        if self._strikes("leak_cancel"):
            raise asyncio.CancelledError
        if not self._store.is_available:
            raise refusal("the simulated log is unavailable")
        if partition.hidden_from is not None and rng.says(0.5):
            partition.hidden_from = None
        if partition.in_flight is not None and rng.says(0.5):
            with suppress(NotAppendedError, FencedError):
                partition.arrive(partition.in_flight)

    def _check_room(self) -> None:
        """Raise NotAppendedError while the broker's disk takes nothing."""
        if self._strikes("log_full"):
            self._partition.refused_appends = self._rng.count(OUTAGE_CALLS_MAX)
        if self._partition.refused_appends > 0:
            self._partition.refused_appends -= 1
            raise NotAppendedError("simulated: the log's disk is full")

    def _strikes(self, fault: str) -> bool:
        """Whether a fault happens now."""
        strikes = self._rng.says(getattr(self._rng.faults, fault))
        if strikes:
            self._store.on_fault(fault, self._topic, self._number)
        return strikes


class SimDecidingLog(SimLog):
    """A partition with what its owners decide. See DecidingLog."""

    def __init__(self, store: SimStore, topic: str, partition: int) -> None:
        super().__init__(store, topic, partition)
        self._beside = store.decisions.setdefault((topic, partition), SimPartition())

    async def fence(self) -> Offset:
        """Take an epoch, have both marked in any order, then read both: each step may be the last."""
        if self._takes_fence():
            return self._expected
        steps = self._store.times.fence, 1 / 4
        await self._call(RetriableError, *steps)
        self._incarnation = self._partition.incarnation
        both = [self._partition, self._beside]
        epoch = self._store.epochs[self._topic, self._number] = 1 + max(
            self._store.epochs.get((self._topic, self._number), 0), *(part.epoch for part in both)
        )
        if self._rng.says(0.5):
            both.reverse()
        for part in both:
            await self._call(RetriableError, *steps)
            self._arrive_late()
            if part.epoch >= epoch or self._store.epochs[self._topic, self._number] != epoch:
                raise RetriableError("simulated: another owner takes the partition over")
            part.mark(epoch)
        end = self._expected = self._partition.high_watermark
        await self._call(RetriableError, *steps)
        self.decisions = list(self._beside.records)
        if self._strikes("lose_reply"):
            raise RetriableError("simulated: the fence was not answered")
        self._epoch = epoch
        return end

    async def decide(self, record: NewRecord) -> None:
        """See DecidingLog."""
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            raise NotAppendedError("this owner has not fenced the partition since its last error")
        await self._send_large(OutcomeUnknownError)
        await self._call(NotAppendedError, self._store.times.produce, 1 / 2)
        if self._strikes("refuse"):
            raise NotAppendedError("simulated: the leader refused the decision")
        request = Request(epoch, 0, [record])
        self._beside.send(request)
        self._store.crashpoint("decide")
        await self._rng.step()
        if self._strikes("delay_append"):
            raise OutcomeUnknownError("simulated: the decision is still under way")
        self._beside.arrive(request)
        self._store.crashpoint("decided")
        await self._store.pass_time(self._store.times.produce, 1 / 2)
        await self._rng.step()
        await self._answer_late()
        self.decisions = list(self._beside.records)
        self._epoch = epoch

    def _arrive_late(self) -> None:
        """Let a decision that is under way arrive now, perhaps."""
        if self._beside.in_flight is not None and self._rng.says(0.5):
            with suppress(NotAppendedError, FencedError):
                self._beside.arrive(self._beside.in_flight)
