"""
The seam to the log: one partition of one stream, one writer at a time.

Lane.submit -> admit -> **PartitionLog.append** -> DedupeIndex.apply

Implementations: adapters.kafka_log, adapters.sqlite_log, sim.sim_log. All of them pass
tests/contract/log_contract.py.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeAlias

from dedupe.types import LogRecord, NewRecord, Offset

Crashpoint: TypeAlias = Callable[[str], None]
"""Called with the name of a commit step just after it; tests end the process in it."""


def no_crashpoint(_name: str) -> None:
    """What production passes as its crash point."""


class PartitionLog(Protocol):
    """
    An append-only, totally ordered partition with exactly one live writer.

    A reader sees committed records only. Offsets grow but may have gaps (Kafka's transaction
    markers take some), so an end is a position, never a count.
    """

    @property
    def pause_after_append_s(self) -> float:
        """How long a writer should wait after an append before taking the next batch; 0 for none."""

    async def fence(self) -> Offset:
        """
        Become the only writer; every earlier writer's open or later append fails.

        Returns:
            restore_end_offset: every record committed before is below it, no other record is or
            will be, except those that this writer appends.

        Raises:
            RetriableError: the log cannot be reached or did not answer in time; call again.
        """

    async def bounds(self) -> tuple[Offset, Offset]:
        """
        Return (log start, last stable offset) without disturbing any writer.

        Committed records of now lie in [start, end); more may be decided later. Raises
        RetriableError.
        """

    def read(self, start: Offset, end: Offset) -> AsyncGenerator[Sequence[LogRecord], None]:
        """
        Yield the committed records of [start, end) in offset order, in batches.

        Begins at the log start, loudly, when `start` is below it. Ends by position: also when the
        last offsets before `end` hold no record.

        Raises:
            RetriableError: the log cannot be reached or stopped answering.
        """

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        """
        Append all records or none, durably, as one transaction.

        Args:
            records: n >= 1, in order, timestamps not decreasing.

        Returns:
            The first record's offset; the others follow without gaps.

        Raises:
            NotAppendedError: definitely nothing is or will be committed.
            OutcomeUnknownError: all n or none are committed; only a fence and a read can tell.
            FencedError: another writer took over; nothing is or will be committed.
            In each case the writer has to fence before it appends again.
        """

    async def close(self) -> None:
        """Give up the partition and free all resources. Never raises, is bounded in time."""


class LogStore(Protocol):
    """All partitions of all streams of one log, behind one connection or file."""

    @property
    def log_id(self) -> str:
        """What tells this log from any other for ever: Kafka's cluster id, or an id made with the file."""

    async def partitions_of(self, topic: str) -> int:
        """Return the topic's partition count, 0 if there is no such topic. Raises RetriableError."""

    def partition_log(self, topic: str, partition: int) -> PartitionLog:
        """Return one partition; nothing is fenced or read yet. `bounds` and `read` need no fence."""

    async def close(self) -> None:
        """Release everything; partition logs handed out must be closed before. Bounded in time."""
