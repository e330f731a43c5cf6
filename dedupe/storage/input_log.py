"""
The interface of a cluster whose topics are inputs: bounds, committed offsets and readers of partitions.

Offsets are committed for a consumer group without members: a commit that comes late, or is lost, only means
that records are read again.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dedupe.model.types import LogRecord, Offset


class CommittedOffset(NamedTuple):
    """What the group of an input has committed for a partition."""

    offset: Offset
    """That of the next record to read."""
    topic_id: str
    """The topic that it is an offset of, 32 hex digits; "" if another program has committed it."""
    seek: int = 0
    """The number of the last seek of the partition that was done before."""


class InputReader(Protocol):
    """Reads one partition from an offset on, committed records alone; never skips to another offset."""

    position: Offset
    """Behind the last record that was read, and behind markers that follow it."""

    fetch_bytes: int
    """About what the next response may have; one record batch is never split."""

    async def poll(self, records_max: int) -> Sequence[LogRecord]:
        """
        Return the next records; none if there are none within half a second or only the position has moved.

        Raises RetriableError: the broker does not answer or refuses. Only `close` may follow.
        """

    def close(self) -> None:
        """Close the connection; raises nothing."""


class InputLog(Protocol):
    """One cluster. Every method raises RetriableError if there is no answer."""

    async def cluster_id(self) -> str:
        """Return the id of the cluster."""

    async def topic_id(self, topic: str) -> str | None:
        """Return 32 hex digits; None if there is no such topic, or the cluster gives topics no ids."""

    async def partitions_of(self, topic: str) -> int:
        """Return the number of partitions."""

    async def bounds(self, topic: str, partition: int) -> tuple[Offset, Offset]:
        """Return the first offset, and the end of committed records."""

    async def first_since(self, topic: str, partition: int, timestamp_ms: int) -> Offset:
        """Return the first offset whose record is as new, the end if there is none."""

    async def committed(self, group: str, topic: str) -> dict[int, CommittedOffset]:
        """Return the committed offsets by partition; partitions without one are left out."""

    async def commit(self, group: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Commit an offset."""

    def reader(self, topic: str, partition: int, start: Offset) -> InputReader:
        """Return a reader, which connects when it is first polled."""

    def close(self) -> None:
        """Close all connections."""
