"""
The fences of a round's lanes, kept for the next round of the process.

A plan ends a round, and what it does next is done by the owner of each partition: it cuts, then serves. A log
that is closed without a doubt leaves its fence here, and the next log of its partition goes on under the same
epoch. Whoever has fenced the partition meanwhile is its owner: what is sent under the kept epoch is refused,
as that of an owner that was frozen (docs/adr/0053-owners-cut-under-the-epoch-that-they-have.md).
"""

from typing import Generic, Protocol, TypeVar

PartitionName = tuple[str, int]
"""A topic, and a partition of it."""


class Fence(Protocol):
    """What makes this process the only writer of a partition."""

    def close(self) -> None:
        """Release its connections; the partition stays fenced."""


Kept = TypeVar("Kept", bound=Fence)


class KeptFences(Generic[Kept]):
    """The fences that logs of one store leave to each other; none before `keep`."""

    def __init__(self) -> None:
        self.is_keeping = False
        """Whether logs that are closed leave their fences."""
        self._kept: dict[PartitionName, Kept] = {}

    def keep(self) -> None:
        """Keep the fences of all logs that are closed from now on, and none of before."""
        self.end()
        self.is_keeping = True

    def hand_out(self) -> None:
        """Keep no more: a round has begun, whose logs take what is kept."""
        self.is_keeping = False

    def leave(self, partition: PartitionName, fence: Kept) -> None:
        """Keep a fence for the next log of its partition."""
        self.release(partition)
        self._kept[partition] = fence

    def take(self, partition: PartitionName) -> Kept | None:
        """Return the fence of a partition, None if none is kept; the caller closes it."""
        return self._kept.pop(partition, None)

    def release(self, partition: PartitionName) -> None:
        """Forget the fence of a partition: somebody else has fenced it."""
        if (fence := self.take(partition)) is not None:
            fence.close()

    def end(self) -> None:
        """Keep no more, and forget what no log has taken."""
        self.hand_out()
        for partition in [*self._kept]:
            self.release(partition)
