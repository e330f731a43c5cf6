"""LaneMoves: when each lane was last given up, so that none moves to and fro."""

from collections.abc import Iterable

from dedupe.model.clock import Clock

MOVE_AGAIN_S = 600.0
"""Between two times that a lane is given up by a watch, by whichever worker."""


class LaneMoves:
    """The moves that the watches of one worker have made, or have heard of from other workers."""

    def __init__(self, clock: Clock) -> None:
        """Know of none."""
        self._clock = clock
        self._at: dict[int, float] = {}  # by lane

    def note(self, lanes: Iterable[int]) -> None:
        """Note that lanes are given up now."""
        self._at.update(dict.fromkeys(lanes, self._clock.monotonic()))

    def has_moved(self, lane: int) -> bool:
        """Whether a lane was given up within MOVE_AGAIN_S."""
        return self._clock.monotonic() - self._at.get(lane, -MOVE_AGAIN_S) < MOVE_AGAIN_S
