"""Carrying: the first seconds of a worker that goes on with its lanes after a plan, while clients wait."""

from collections.abc import Iterable, Sequence

from dedupe.cluster.assignment import Assignment
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane

CARRYING_S = 2.0
"""How long lanes that are followed wait for those that are owned at most."""


class Carrying:
    """How lanes are assigned until the group says so, and which of them come first."""

    def __init__(self, begun: Assignment | None, lanes: Sequence[Lane], clock: Clock) -> None:
        """Take the assignment with which the worker goes on, see carried_over; None: it has just started."""
        self.begun = begun
        """None once the group has assigned lanes."""
        self.was_begun = begun is not None
        self._lanes = lanes
        self._clock = clock
        self._until = clock.monotonic() + CARRYING_S if begun is not None else None

    def holds_up(self, owned: Iterable[int]) -> bool:
        """Whether lanes that this worker owns have yet to serve, so that it follows none yet."""
        return self._is_young and not all(self._lanes[number].has_served for number in owned)

    def is_failing(self, number: int) -> bool:
        """Whether a lane waits for its log or index: one that has yet to serve may try again meanwhile."""
        lane = self._lanes[number]
        return lane.health.is_failing and (lane.has_served or not self._is_young)

    @property
    def _is_young(self) -> bool:
        return self._until is not None and self._clock.monotonic() < self._until
