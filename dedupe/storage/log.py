"""
The interface of the log: partitions with one writer each.

Lane.submit -> admit -> **PartitionLog.append** -> DedupeIndex.apply

Implementations: storage.kafka.log, storage.sqlite.log, and the tests' simulated log. All pass
tests/contract/log_contract.py.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeAlias

from dedupe.model.types import LogRecord, NewRecord, Offset

Crashpoint: TypeAlias = Callable[[str], None]
"""Called with the name of a step of a commit, or of a plan; tests end the process there."""

NOTE_BYTES_MAX = 4000


def no_crashpoint(_name: str) -> None:
    """Do nothing."""


class PartitionLog(Protocol):
    """
    An append-only, totally ordered partition with one live writer.

    Readers see committed records only. Offsets may have gaps, since Kafka's markers occupy some: an end is a
    position, not a count.
    """

    @property
    def pause_after_append_s(self) -> float:
        """The pause from now on before a writer's next batch; 0 for none, long while the log asks for it."""

    @property
    def throttled_s(self) -> float:
        """How long the log has asked writers to pause so far, since a quota was used up."""

    async def fence(self) -> Offset:
        """
        Become the only writer: appends of earlier writers fail from now on.

        Returns:
            restore_end_offset: all records of earlier writers are below it.

        Raises:
            RetriableError: the log cannot be reached or did not answer in time; call again.
        """

    async def has_same_topic(self) -> bool:
        """
        Whether the topic is the one that was fenced last, not one of the same name that was made anew.

        Raises RetriableError: nobody knows now.
        """

    async def bounds(self) -> tuple[Offset, Offset]:
        """
        Return (log start, last stable offset); no effect on writers.

        The committed records lie in [start, end). Raises RetriableError.
        """

    async def offset_at(self, timestamp_ms: int) -> Offset:
        """
        Return an offset at or below the first committed record with this timestamp or a later one.

        Every record below the offset is older. It is at most the end of `bounds`. Raises RetriableError.
        """

    def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        """
        Yield the committed records of [start, end) in offset order, in batches.

        Begins at the log start, with a warning, when `start` is below it. Ends at the position `end`, even if
        the last offsets before it have no record.

        Args:
            start: the first offset.
            end: exclusive.
            records_max: the maximum number of records; little more is fetched, since recovery often needs
                a few records of all lanes at once.

        Raises:
            RetriableError: the log cannot be reached or stopped answering.
        """

    async def record_at(self, offset: Offset) -> LogRecord | None:
        """
        Return the committed record at an offset; None if there is none.

        It is meant for a single record now and then, beside appends.

        Raises:
            RetriableError: the log does not answer, or says nothing of offsets outside of its bounds.
            LogCorruptError: the log has lost the record.
        """

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        """
        Append all records or none, durably.

        Args:
            records: n >= 1, in order, timestamps not decreasing.

        Returns:
            The first record's offset; the others follow without gaps.

        Raises:
            RecordsRefusedError: the log takes no batch of these records; nothing is or will be committed.
            NotAppendedError: nothing is or will be committed.
            OutcomeUnknownError: all n or none are committed; a fence and a read show which.
            FencedError: another writer has fenced the partition; nothing is or will be committed.
            In each case but the first the writer must fence before its next append.
        """

    @property
    def leader(self) -> str:
        """The name of the server that takes appends, as far as is known: the same for all processes."""

    async def probe(self) -> None:
        """
        Have the leader answer a request as large as a large append, on a new connection; nothing is stored.

        It may be called by a process that has fenced the partition once, even if another one has since.

        Raises:
            RetriableError: no answer. Has no time limit of its own.
        """

    async def close(self) -> None:
        """Release all resources. Never raises, bounded in time."""


class DecidingLog(PartitionLog, Protocol):
    """A partition whose owner decides beside it: one fence is that of both."""

    @property
    def decisions(self) -> Sequence[LogRecord]:
        """The decisions of all earlier owners, as the last fence found them, and its own."""

    async def decide(self, record: NewRecord) -> None:
        """
        Append a decision durably; it is there when this returns, and appends go on.

        Raises:
            NotAppendedError: it is not and will not be there.
            OutcomeUnknownError: the next fence shows whether it is there.
            FencedError: another owner has fenced both; it is not and will not be there.
            In each case the owner must fence before it appends or decides.
        """


class Appender(Protocol):
    """Appends to a topic of which nothing is promised; other processes may append to it, too."""

    async def append(self, records: Sequence[NewRecord]) -> None:
        """
        Append n >= 1 records, timestamps not decreasing.

        Raises:
            RecordsRefusedError: the log takes no batch of these records.
            RetriableError: they may be there or not; appended again, they may be there twice.
        """

    async def close(self) -> None:
        """Release all resources. Never raises, bounded in time."""


class LogStore(Protocol):
    """One log: a Kafka cluster, or a file."""

    @property
    def log_id(self) -> str:
        """The log's unique id: Kafka's cluster id, or an id in the file."""

    async def partitions_of(self, topic: str) -> int:
        """Return the topic's number of partitions, 0 if it does not exist. Raises RetriableError."""

    def partition_log(self, topic: str, partition: int) -> PartitionLog:
        """Return one partition, without a request. Only `append` needs a fence."""

    def deciding_log(self, topic: str, partition: int) -> DecidingLog:
        """Return one partition with what its owners decide, without a request; the embedded log has none."""

    def appender(self, topic: str) -> Appender:
        """Return what appends to a topic of one partition, without a request."""

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        """
        Return the notes of this name by partition.

        Raises:
            RetriableError: the log cannot be reached.
            ConfigurationError: the log does not allow this process to read notes, or has lost some.
            IdentityMismatchError: a note is of another secret or another log, or of a newer gateway.
        """

    async def note(self, name: str, topic: str, partition: int, text: str, *, once: bool = False) -> None:
        """
        Write a note of a partition durably, or replace the one of the same name.

        Every process that opens the log can read it.

        Args:
            name: the kind of note, lower-case letters.
            topic: an existing topic.
            partition: the partition that the note is about.
            text: at most NOTE_BYTES_MAX bytes as UTF-8.
            once: keep the note of the same name, if there is one.

        Raises:
            RetriableError: the outcome is unknown; call again.
            ConfigurationError: the log does not allow this process to write notes.
        """

    async def close(self) -> None:
        """Release all resources, after all partition logs are closed. Bounded in time."""
