"""
The seam to whoever decides which workers are in the group: Kafka's group coordinator, or a simulated one.

Membership is a hint (rule R9): it says who should own a lane, and the log's fencing who does.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from dedupe.group.assignment import Assignment, Member

Describe: TypeAlias = Callable[[], Member]
"""Says what this worker tells the group of itself now."""

Take: TypeAlias = Callable[[int, Assignment], None]
"""Takes a generation and what it assigns; later ones have larger numbers. Must not raise."""


class Membership(Protocol):
    """One worker's place in the group of those that share a log."""

    @property
    def silence_s(self) -> float:
        """How long ago the group answered last, in seconds: it may have gone on without this worker."""

    async def run(self, describe: Describe, take: Take) -> None:
        """Be a member until cancelled, whatever fails meanwhile; a cancellation does not `leave`."""

    def rejoin(self) -> None:
        """Have the group assign anew soon: this worker has something new to tell. Never blocks or raises."""

    async def leave(self) -> None:
        """Tell the group that this worker goes, after `run` was cancelled. Bounded; never raises."""
