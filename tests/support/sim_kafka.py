"""
A Kafka cluster in memory: what its brokers know of one topic and its producers, by their own rules.

Two nodes; all partitions are led by the first, transactions are coordinated by either. Producers write
outside of transactions, which serve for their markers alone: EndTxn is answered before these are written, and
a repeated EndTxn of a complete transaction succeeds. Times are the event loop's.
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

OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
OFFSET_OUT_OF_RANGE = 1

MARKERS_S = 0.003
"""From EndTxn's answer until the markers are written, as measured on a real broker."""
CONTROL_BIT = 0x20
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
    last: Batch | None = None


class SimPartitionLog:
    """One partition: its batches and markers, and what is remembered of producers."""

    def __init__(self) -> None:
        self.end: Offset = 0
        self.batches: list[Batch] = []
        self.shown_end: Offset | None = None  # a deposed leader's, who has not noticed; None: all is shown
        self._producers: dict[int, Producer] = {}

    @property
    def last_stable_offset(self) -> Offset:
        """Below it everything is shown to readers."""
        return self.end if self.shown_end is None else self.shown_end

    def forget(self) -> None:
        """Forget all producers, as a leader does of those that have written nothing for a day."""
        self._producers.clear()

    def append(self, raw: bytes) -> tuple[int, Offset]:
        """Take a batch; return an error code and its offset."""
        header = DefaultRecordBatch(raw)
        unknown = Producer(header.producer_epoch, header.base_sequence)  # any sequence number will do
        producer = self._producers.get(header.producer_id, unknown)
        if header.producer_epoch < producer.epoch:
            return INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > producer.epoch:
            producer = Producer(header.producer_epoch)
        records = len(list(header))
        if header.base_sequence == producer.next_sequence - records and producer.last is not None:
            return 0, producer.last.base  # sent again
        if header.base_sequence != producer.next_sequence:
            return OUT_OF_ORDER_SEQUENCE, -1
        batch = Batch(self.end, self.end + records - 1, struct.pack(">q", self.end) + raw[8:])
        self.end += records
        self.batches.append(batch)
        self._producers[header.producer_id] = Producer(
            producer.epoch, producer.next_sequence + records, batch
        )
        return 0, batch.base

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """Write a marker, which tells of its producer's epoch."""
        self.batches.append(Batch(self.end, self.end, _marker(self.end, producer_id, epoch, is_commit)))
        self.end += 1
        known = self._producers.get(producer_id, Producer(epoch))
        self._producers[producer_id] = known if known.epoch == epoch else Producer(epoch)

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


class SimKafka:
    """The cluster, with one topic. Every method settles what is due first."""

    def __init__(self, topic: str, partitions: int, now: Callable[[], float]) -> None:
        self.topic = topic
        self.partitions = [SimPartitionLog() for _ in range(partitions)]
        self.coordinator = 0
        self.timeouts = 0  # transactions that the coordinator has ended by itself
        self._now = now
        self.first_epoch = 0
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

    def init_producer_id(self, name: str, timeout_ms: int) -> tuple[int, int, int]:
        """Return an error code, producer id and epoch; fences whoever had the transactional id."""
        if name not in self._ids:
            self._ids[name] = Transactions(next(self._producer_ids), self.first_epoch - 1)
        known = self._ids[name]
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
        known = self._ids[name]
        if code := _refusal(known, producer_id, epoch):
            return code
        if known.state is State.PREPARED:
            return CONCURRENT_TRANSACTIONS
        if known.state is not State.ONGOING:
            known.state, known.began_s, known.partitions = State.ONGOING, self._now(), set()
        known.partitions.update(partitions)
        return 0

    def end_transaction(self, name: str, producer_id: int, epoch: int, *, is_commit: bool) -> int:
        """Return an error code; the markers follow a moment later."""
        known = self._ids[name]
        if code := _refusal(known, producer_id, epoch):
            return code
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
