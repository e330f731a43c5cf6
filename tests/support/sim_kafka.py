"""
A Kafka cluster in memory: what its brokers know of one topic and its producers, by their own rules.

Two nodes; one leads all partitions, one coordinates all transactions. What a leader knows is replicated.
Producers write outside of transactions, which serve for their markers alone: EndTxn is answered before these
are written, and a repeated EndTxn of a complete transaction succeeds. Times are the event loop's.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from dedupe.model.types import Offset

MESSAGE_TOO_LARGE = 10
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
OFFSET_OUT_OF_RANGE = 1

MARKERS_S = 0.003
"""From EndTxn's answer until the markers are written, as measured on a real broker."""
CONTROL_BIT = 0x20
PRODUCER_EXPIRATION_S, ID_EXPIRATION_S = 86_400.0, 7 * 86_400.0
"""After how long leaders forget a producer, and coordinators a transactional id, by default."""
BATCHES_REMEMBERED = 5
EPOCH_MAX = 32_767


class State(Enum):
    """Where a transactional id is."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARED = "prepared"  # decided, markers are being written
    COMPLETE = "complete"


class Batch(NamedTuple):
    """One record batch in a partition."""

    base: Offset
    last: Offset
    raw: bytes


class Producer(NamedTuple):
    """What a partition remembers of a producer id."""

    epoch: int
    next_sequence: int = 0
    batches: tuple[tuple[int, int, Offset], ...] = ()
    """The last five of this epoch: first sequence number, number of records, offset."""
    seen_s: float = 0.0  # when it last wrote


class SimPartitionLog:
    """One partition: its batches and markers, and what is remembered of producers."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.end: Offset = 0
        self.batches: list[Batch] = []
        self.shown_end: Offset | None = None  # a deposed leader's, who has not noticed; None: all is shown
        self.open_since: Offset | None = None  # where a transaction of a stranger begins
        self.forgets_after_s = PRODUCER_EXPIRATION_S
        self.message_bytes_max: int | None = None
        self.takes_older_epochs = False
        """Whether sequence numbers alone are looked at, as Redpanda does outside of transactions."""
        self._now = now
        self._producers: dict[int, Producer] = {}

    @property
    def last_stable_offset(self) -> Offset:
        """Below it everything is shown to readers of committed records."""
        return self.shown if self.open_since is None else min(self.shown, self.open_since)

    @property
    def shown(self) -> Offset:
        """Below it everything is shown to readers of all records."""
        return self.end if self.shown_end is None else self.shown_end

    def forget(self) -> None:
        """Forget all producers, as a leader does of those that have written nothing for a day."""
        self._producers.clear()

    def settle(self) -> None:
        """Forget the producers that have been silent for long."""
        before_s = self._now() - self.forgets_after_s
        self._producers = {name: each for name, each in self._producers.items() if each.seen_s >= before_s}

    def append(self, raw: bytes) -> tuple[int, Offset]:
        """Take a batch; return an error code and its offset."""
        self.settle()
        if self.message_bytes_max is not None and len(raw) > self.message_bytes_max:
            return MESSAGE_TOO_LARGE, -1  # before anything of its producer is looked at
        header = DefaultRecordBatch(raw)
        epoch, sequence, records = header.producer_epoch, header.base_sequence, len(list(header))
        producer = self._producers.get(header.producer_id)
        if producer is None or (self.takes_older_epochs and not producer.batches):
            producer = Producer(epoch, sequence)  # any sequence number will do
        if epoch < producer.epoch and not self.takes_older_epochs:
            return INVALID_PRODUCER_EPOCH, -1
        if epoch > producer.epoch:
            producer = Producer(epoch)
        for first, size, offset in producer.batches:
            if (first, size) == (sequence, records):
                return 0, offset  # sent again
        if sequence != producer.next_sequence:
            return OUT_OF_ORDER_SEQUENCE, -1
        base = self.end
        self.batches.append(Batch(base, base + records - 1, struct.pack(">q", base) + raw[8:]))
        self.end += records
        self._producers[header.producer_id] = Producer(
            producer.epoch,
            (sequence + records) % 2**31,
            (*producer.batches, (sequence, records, base))[-BATCHES_REMEMBERED:],
            self._now(),
        )
        return 0, base

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """Write a marker, which tells of its producer's epoch, and of no sequence number."""
        self.settle()
        self.batches.append(Batch(self.end, self.end, _marker(self.end, producer_id, epoch, is_commit)))
        self.end += 1
        known = self._producers.get(producer_id, Producer(epoch))
        known = known if known.epoch == epoch else Producer(epoch)
        self._producers[producer_id] = known._replace(seen_s=self._now())

    def read(self, start: Offset) -> list[bytes]:
        """Return the batches from an offset on, as far as they are shown."""
        end = self.last_stable_offset
        return [batch.raw for batch in self.batches if start <= batch.last < end]


def _marker(offset: Offset, producer_id: int, epoch: int, is_commit: bool) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1,
        batch_size=1000,
    )
    builder.append(0, timestamp=1, key=struct.pack(">hh", 0, is_commit), value=bytes(6), headers=[])
    raw = bytearray(builder.build())
    raw[0:8] = struct.pack(">q", offset)
    raw[22] |= CONTROL_BIT  # of the attributes, two bytes from 21 on
    raw[17:21] = struct.pack(">I", calc_crc32c(bytes(raw[21:])))
    return bytes(raw)


@dataclass(slots=True)
class Transactions:
    """What the coordinator knows of one transactional id."""

    producer_id: int
    epoch: int
    state: State = State.EMPTY
    is_commit: bool = False
    ended_by: int = -1  # the producer id of the transaction that was last decided
    timeout_s: float = 0.0
    began_s: float = 0.0
    ends_s: float = 0.0  # when its markers are written
    partitions: set[int] = field(default_factory=set)
    used_s: float = 0.0


class SimKafka:
    """The cluster, with one topic. Every method settles what is due first."""

    def __init__(self, topic: str, partitions: int, now: Callable[[], float]) -> None:
        self.topic = topic
        self.partitions = [SimPartitionLog(now) for _ in range(partitions)]
        self.coordinator = 0
        self.leader = 0
        self.timeouts = 0  # transactions that the coordinator has ended by itself
        self._now = now
        self.first_epoch = 0
        self.topic_id = b"\1" * 16
        self.has_log_append_time = False
        self.log_time_ms = 1
        self._ids: dict[str, Transactions] = {}
        self._producer_ids = count(1000)

    def settle(self) -> None:
        """Write the markers that are due, and end transactions that have become too old."""
        now = self._now()
        for known in self._ids.values():
            if known.state is State.PREPARED and now >= known.ends_s:
                self._write_markers(known)
            if known.state is State.ONGOING and now - known.began_s > known.timeout_s:
                self.timeouts += 1
                self._prepare(known, is_commit=False, bumps_epoch=True)
        idle = (State.EMPTY, State.COMPLETE)
        for name, known in list(self._ids.items()):
            if known.state in idle and now - known.used_s > ID_EXPIRATION_S:
                del self._ids[name]

    def init_producer_id(self, name: str, timeout_ms: int) -> tuple[int, int, int]:
        """Return an error code, producer id and epoch; fences whoever had the transactional id."""
        if name not in self._ids:
            self._ids[name] = Transactions(next(self._producer_ids), self.first_epoch - 1)
        known = self._ids[name]
        known.used_s = self._now()
        if known.state is State.ONGOING:
            self._prepare(known, is_commit=False, bumps_epoch=True)
        if known.state is State.PREPARED:
            return CONCURRENT_TRANSACTIONS, -1, -1
        self._bump_epoch(known)
        known.timeout_s = timeout_ms / 1000
        known.state = State.EMPTY
        return 0, known.producer_id, known.epoch

    def add_partitions(self, name: str, producer_id: int, epoch: int, partitions: Sequence[int]) -> int:
        """Return an error code; the first call begins a transaction."""
        known = self._ids.get(name)
        if known is None:
            return INVALID_PRODUCER_ID_MAPPING
        if code := _refusal(known, producer_id, epoch):
            return code
        known.used_s = self._now()
        if known.state is State.PREPARED:
            return CONCURRENT_TRANSACTIONS
        if known.state is not State.ONGOING:
            known.state, known.began_s, known.partitions = State.ONGOING, self._now(), set()
        known.partitions.update(partitions)
        return 0

    def end_transaction(self, name: str, producer_id: int, epoch: int, *, is_commit: bool) -> int:
        """Return an error code; the markers follow a moment later."""
        known = self._ids.get(name)
        if known is None:
            return INVALID_PRODUCER_ID_MAPPING
        if code := _refusal(known, producer_id, epoch):
            return code
        known.used_s = self._now()
        if known.state is State.ONGOING:
            self._prepare(known, is_commit=is_commit)
            return 0
        if known.state is State.EMPTY or known.is_commit != is_commit:
            return INVALID_TXN_STATE
        return CONCURRENT_TRANSACTIONS if known.state is State.PREPARED else 0

    def _prepare(self, known: Transactions, *, is_commit: bool, bumps_epoch: bool = False) -> None:
        known.ended_by = known.producer_id
        if bumps_epoch:
            self._bump_epoch(known)
        known.state, known.is_commit, known.ends_s = State.PREPARED, is_commit, self._now() + MARKERS_S

    def _bump_epoch(self, known: Transactions) -> None:
        known.epoch += 1
        if known.epoch == EPOCH_MAX:
            known.producer_id, known.epoch = next(self._producer_ids), 0

    def _write_markers(self, known: Transactions) -> None:
        for partition in sorted(known.partitions):
            epoch = known.epoch if known.producer_id == known.ended_by else EPOCH_MAX
            self.partitions[partition].mark(known.ended_by, epoch, is_commit=known.is_commit)
        known.state = State.COMPLETE


def _refusal(known: Transactions, producer_id: int, epoch: int) -> int:
    if producer_id != known.producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    return 0 if epoch == known.epoch else INVALID_PRODUCER_EPOCH
