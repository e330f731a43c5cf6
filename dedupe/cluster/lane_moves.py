"""LaneMoves: when each lane was last given up, so that none moves to and fro."""

from collections.abc import Iterable

from dedupe.cluster.assignment import WorkerId
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.model.clock import Clock

MOVE_AGAIN_S = 600.0
"""Between two times that a lane is given up by a watch, by whichever worker."""


class LaneMoves:
    """The moves that the watches of one worker have made, and those that other workers tell of."""

    def __init__(self, directory: PeerDirectory, clock: Clock) -> None:
        """Know of none."""
        self._directory, self._clock = directory, clock
        self._told: dict[WorkerId, frozenset[int]] = {}  # what each other worker has given up, as last seen
        self._at: dict[int, float] = {}  # by lane

    def note(self, lanes: Iterable[int]) -> None:
        """Note that lanes are given up now."""
        self._at.update(dict.fromkeys(lanes, self._clock.monotonic()))

    def hear(self) -> None:
        """
        Note what others have given up since this was last called, a few times a second.

        What they go on to tell counts once: who stays unproved does not hold up the next owner of its lanes.
        """
        for name, status in self._directory.alive().items():
            left = status.given_up | status.handed_over
            self.note(left - self._told.get(name, frozenset()))
            self._told[name] = left

    def has_moved(self, lane: int) -> bool:
        """Whether a lane was given up within MOVE_AGAIN_S, as far as this worker has been told by now."""
        self.hear()
        return self._clock.monotonic() - self._at.get(lane, -MOVE_AGAIN_S) < MOVE_AGAIN_S
