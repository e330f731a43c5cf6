"""
Which worker of a group reads each partition of its inputs.

The group's leader shares the partitions out in the assignment that it tells all members. Events are stored
once without it: the index knows what a second reader submits again, and each commits only what is decided.
"""

from typing import Protocol

from dedupe.cluster.assignment import Assignment, Member, WorkerId
from dedupe.cluster.input_places import place_of
from dedupe.cluster.membership import Describe, MemberPlace, Membership, Take

SILENCE_MAX_S = 30.0
"""A worker that has not heard the group for longer reads nothing: it may have slept, and others read."""


class InputShares(Protocol):
    """What this process reads of inputs."""

    def offer(self, name: str, partitions: int) -> None:
        """Say that this process can read an input, of so many partitions."""

    def stop(self, name: str) -> None:
        """Say that an input must not be read, by no worker, until `resume` or a restart."""

    def resume(self, name: str) -> None:
        """Undo `stop`."""

    def is_mine(self, name: str, partition: int) -> bool:
        """Whether this process is to read a partition, as far as it knows."""

    @property
    def is_heard(self) -> bool:
        """Whether this process knows that lately; else it must commit nothing."""


class LoneShares:
    """A gateway that is alone reads everything."""

    is_heard = True

    def offer(self, name: str, partitions: int) -> None:
        """Nobody else asks."""

    def stop(self, name: str) -> None:
        """Nobody else asks."""

    def resume(self, name: str) -> None:
        """Nobody else asks."""

    def is_mine(self, _name: str, _partition: int) -> bool:
        return True


class GroupShares:
    """A worker's share, and its membership with that: see InputShares and Membership."""

    def __init__(self, membership: Membership, worker: WorkerId) -> None:
        """Add to what `membership` tells the group of this worker."""
        self._membership = membership
        self._worker = worker
        self._partitions: dict[str, int] = {}
        self._stopped: set[str] = set()
        self._mine: frozenset[str] = frozenset()

    # ---- InputShares

    def offer(self, name: str, partitions: int) -> None:
        if self._partitions.get(name) != partitions:
            self._partitions[name] = partitions
            self.rejoin()

    def stop(self, name: str) -> None:
        self._stopped.add(name)
        self.rejoin()

    def resume(self, name: str) -> None:
        self._stopped.discard(name)
        self.rejoin()

    def is_mine(self, name: str, partition: int) -> bool:
        return self.is_heard and place_of(name, partition) in self._mine

    @property
    def is_heard(self) -> bool:
        return self.silence_s <= SILENCE_MAX_S

    # ---- Membership

    @property
    def silence_s(self) -> float:
        return self._membership.silence_s

    @property
    def joining_s(self) -> float:
        return self._membership.joining_s

    @property
    def place(self) -> MemberPlace | None:
        return self._membership.place

    async def run(self, describe: Describe, take: Take) -> None:
        def describe_all() -> Member:
            return describe()._replace(
                inputs=dict(self._partitions),
                inputs_read=tuple(sorted(self._mine)),
                inputs_stopped=tuple(sorted(self._stopped)),
            )

        def take_all(generation: int, assignment: Assignment) -> None:
            self._mine = frozenset(at for at, name in assignment.inputs.items() if name == self._worker)
            take(generation, assignment)

        await self._membership.run(describe_all, take_all)

    def rejoin(self) -> None:
        self._membership.rejoin()

    async def leave(self) -> None:
        await self._membership.leave()
