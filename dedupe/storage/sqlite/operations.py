"""
The operations of the SQLite log's writer, one class each: append, fence, create a topic, write a note, trim.

Each runs inside the transaction of its group (see writer), after the operations before it. An operation
that raises has changed nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dedupe.model.errors import (
    ConfigurationError,
    FencedError,
    NotAppendedError,
    OutcomeUnknownError,
    RetriableError,
)
from dedupe.model.types import Offset
from dedupe.storage.sqlite.schema import OFFSETS_MAX, Row
from dedupe.storage.sqlite.writer import Transaction


class Fenced(NamedTuple):
    """The result of a fence: the new epoch, and restore_end_offset."""

    epoch: int
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class Append:
    """Append records if the writer's epoch is still the newest. Returns the first offset."""

    first_id: int
    epoch: int
    rows: Sequence[Row]
    size_bytes: int
    undone: ClassVar[type[RetriableError]] = NotAppendedError
    unknown: ClassVar[type[RetriableError]] = OutcomeUnknownError

    @property
    def records(self) -> int:
        return len(self.rows)

    def run(self, transaction: Transaction) -> Offset:
        """Raises FencedError."""
        partition = transaction.partition(self.first_id)
        if partition.epoch != self.epoch:
            raise FencedError(f"another writer has fenced this partition since epoch {self.epoch}")
        base = partition.next_offset
        transaction.partition_to_change(self.first_id).next_offset += len(self.rows)
        transaction.put(self.first_id + base, self.rows)
        return base


@dataclass(frozen=True, slots=True)
class Change:
    """An operation without records, which the caller repeats after any error."""

    undone: ClassVar[type[RetriableError]] = RetriableError
    unknown: ClassVar[type[RetriableError]] = RetriableError
    records: ClassVar[int] = 0
    size_bytes: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Fence(Change):
    """Begin a new epoch of a partition."""

    first_id: int

    def run(self, transaction: Transaction) -> Fenced:
        """Return the new epoch, and the end of the records of earlier epochs."""
        partition = transaction.partition_to_change(self.first_id)
        partition.epoch += 1
        return Fenced(partition.epoch, partition.next_offset)


@dataclass(frozen=True, slots=True)
class CreateTopic(Change):
    """Create the partitions of a topic, unless they exist."""

    topic: str
    partitions: int

    def run(self, transaction: Transaction) -> None:
        """Raises ConfigurationError: the topic has another number of partitions, or the file too many."""
        (existing,) = transaction.execute("SELECT count(*) FROM partitions WHERE topic = ?", self.topic)
        if existing == self.partitions:
            return
        if existing:
            raise ConfigurationError(
                f"topic {self.topic} has {existing} partitions, which cannot become {self.partitions}"
            )
        (used,) = transaction.execute("SELECT count(*) FROM partitions")
        if (used + self.partitions) * OFFSETS_MAX > 1 << 63:
            raise ConfigurationError(f"one SQLite log cannot hold {used + self.partitions} partitions")
        for partition in range(self.partitions):
            transaction.execute(
                "INSERT INTO partitions(first_id, topic, partition) VALUES (?, ?, ?)",
                (used + partition) * OFFSETS_MAX,
                self.topic,
                partition,
            )


@dataclass(frozen=True, slots=True)
class KeepNote(Change):
    """Write a row of `meta`, or replace it, unless it is written once."""

    key: str
    text: str
    once: bool = False

    def run(self, transaction: Transaction) -> None:
        conflict = "IGNORE" if self.once else "REPLACE"
        transaction.execute(f"INSERT OR {conflict} INTO meta VALUES (?, ?)", self.key, self.text)


@dataclass(frozen=True, slots=True)
class Trim(Change):
    """Delete the oldest records of a partition, never its newest. Returns their number."""

    first_id: int
    before_ms: int
    records_max: int

    def run(self, transaction: Transaction) -> int:
        """Read at most `records_max` records, so that the transaction is short."""
        partition = transaction.partition(self.first_id)
        start = partition.log_start_offset
        # The newest record stays: the next lane_seq follows from it.
        stop = min(start + self.records_max, partition.next_offset - 1)
        kept = transaction.execute(
            "SELECT id FROM records WHERE id >= ? AND id < ? AND timestamp_ms >= ? ORDER BY id LIMIT 1",
            self.first_id + start,
            self.first_id + stop,
            self.before_ms,
        )
        if kept is not None:
            stop = kept[0] - self.first_id
        if stop <= start:
            return 0
        transaction.execute(
            "DELETE FROM records WHERE id >= ? AND id < ?", self.first_id + start, self.first_id + stop
        )
        transaction.partition_to_change(self.first_id).log_start_offset = stop
        return stop - start
