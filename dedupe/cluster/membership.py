"""
The interface of a group's coordinator: Kafka's, or a simulated one.

Membership is a hint about the owner of a lane; the log's fencing decides which worker owns it.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from dedupe.cluster.assignment import Assignment, Member

Describe: TypeAlias = Callable[[], Member]
"""Returns this worker's description for the group."""

Take: TypeAlias = Callable[[int, Assignment], None]
"""Receives a generation and its assignment; later generations have larger numbers. Must not raise."""


class MemberPlace(NamedTuple):
    """By what the coordinator, and the other members, know a worker."""

    member_id: str
    generation: int  # of its last assignment
    started_ms: int  # of two workers with one name, the later one counts


class Membership(Protocol):
    """One worker's membership in the group of workers that share a log."""

    @property
    def place(self) -> MemberPlace | None:
        """Its place in the group, which another membership of this process may take; None without any."""

    @property
    def silence_s(self) -> float:
        """Seconds after the coordinator's last answer; the group may have a new generation meanwhile."""

    @property
    def joining_s(self) -> float:
        """Seconds since this worker asked for an assignment that it has not got; 0 while it has one."""

    async def run(self, describe: Describe, take: Take) -> None:
        """Be a member until cancelled, retrying every failure; cancellation does not `leave`."""

    def rejoin(self) -> None:
        """Request a new assignment soon, since this worker's description changed. Never blocks or raises."""

    async def leave(self) -> None:
        """Leave the group, after `run` was cancelled. Bounded; never raises."""
