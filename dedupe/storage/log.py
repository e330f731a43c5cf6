"""
The seam to the log: one partition of one stream, one writer at a time.

Lane.submit -> admit -> **PartitionLog.append** -> DedupeIndex.apply

Implementations: adapters.kafka_log, adapters.sqlite_log, tests.support.sim.sim_log. All of them pass
tests/contract/log_contract.py.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeAlias

from dedupe.model.types import LogRecord, NewRecord, Offset

Crashpoint: TypeAlias = Callable[[str], None]
"""Called with the name of a commit step just after it; tests end the process in it."""

NOTE_BYTES_MAX = 4000
"""Kafka's own bound of what a note is kept in is 4,096 (`offset.metadata.max.bytes`)."""


def no_crashpoint(_name: str) -> None:
    """Do nothing."""


class PartitionLog(Protocol):
    """
    An append-only, totally ordered partition with exactly one live writer.

    A reader sees committed records only. Offsets grow but may have gaps (the markers of Kafka's fences
    take some), so an end is a position, never a count.
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

    async def offset_at(self, timestamp_ms: int) -> Offset:
        """
        Return an offset at or below that of the first committed record which is as new as this.

        Every record below it is older; of those from it on, some may be. It is at most the end of
        `bounds`. Raises RetriableError.
        """

    def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        """
        Yield the committed records of [start, end) in offset order, in batches.

        Begins at the log start, loudly, when `start` is below it. Ends by position: also when the
        last offsets before `end` hold no record.

        Args:
            start: first offset of interest.
            end: where to stop, exclusive.
            records_max: end after so many records, and fetch little more than they are. Recovery
                often wants a few only, of all lanes at once.

        Raises:
            RetriableError: the log cannot be reached or stopped answering.
        """

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        """
        Append all records or none, durably.

        Args:
            records: n >= 1, in order, timestamps not decreasing.

        Returns:
            The first record's offset; the others follow without gaps.

        Raises:
            NotAppendedError: definitely nothing is or will be committed.
            OutcomeUnknownError: all n or none are committed; a fence and a read show which.
            FencedError: another writer took over; nothing is or will be committed.
            In each case the writer has to fence before it appends again.
        """

    async def close(self) -> None:
        """Give up the partition and free all resources. Never raises, is bounded in time."""


class LogStore(Protocol):
    """All partitions of all streams of one log, behind one connection or file."""

    @property
    def log_id(self) -> str:
        """The unique id of this log: Kafka's cluster id, or an id made with the file."""

    async def partitions_of(self, topic: str) -> int:
        """Return the topic's partition count, 0 if there is no such topic. Raises RetriableError."""

    def partition_log(self, topic: str, partition: int) -> PartitionLog:
        """Return one partition; nothing is fenced or read yet. Only `append` needs a fence."""

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        """
        Return the newest note of this name of each partition that has one.

        Raises:
            RetriableError: the log cannot be reached.
            ConfigurationError: the log does not let this process read notes.
        """

    async def note(self, name: str, topic: str, partition: int, text: str) -> None:
        """
        Keep a note with the log, durably, in the place of an earlier one of the same name.

        It belongs to the log: it is lost with the topic, and found by every process that opens the
        log. Kafka forgets it a week after it was written last, so a running gateway renews it.

        Args:
            name: what kind of note, lower-case letters.
            topic: one that exists.
            partition: whose note it is.
            text: at most NOTE_BYTES_MAX bytes as UTF-8.

        Raises:
            RetriableError: it may or may not be kept; do it again.
            ConfigurationError: the log does not let this process write notes.
        """

    async def close(self) -> None:
        """Release everything; partition logs handed out must be closed before. Bounded in time."""
