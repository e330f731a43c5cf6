"""
DiskWatch: gives the lanes of a worker whose disk is low up to standbys whose disks are not.

A worker below GATEWAY_DISK_FREE_MIN refuses all events, so its lanes are of no use to anybody, and a batch of
any client nearly always has an event of one of them. A lane stays where its standby is not whole: not caught
up, low on disk itself, or not answered by the log. So disks that are low on all workers move no lane.
"""

from collections.abc import Callable, Sequence
from itertools import filterfalse

import structlog

from dedupe.cluster.append_watch import PROVED_S
from dedupe.cluster.assignment import WorkerId
from dedupe.cluster.lane_moves import MOVE_AGAIN_S, LaneMoves
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.cluster.standbys import ask_standbys, by_standby
from dedupe.cluster.watching import keep_looking
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane

# In seconds:
WATCH_S = 0.5
AGAIN_S = 5.0  # between two questions to standbys
LASTS_S = 2.5
"""How long the disk is low before that: workers of one volume look once a second, and are all low then."""
ROOM_S = MOVE_AGAIN_S
"""
How long the disk must have had room before a worker that gave lanes up gets some again: compaction frees and
fills it by turns, and a lane that came back sooner could not be given up again. PROVED_S for one without any.
"""

logger = structlog.get_logger(__name__)


class DiskWatch:
    """The lanes that this worker does not run, since its disk is low."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        running: set[int],
        directory: PeerDirectory,
        clock: Clock,
        moves: LaneMoves,
        on_change: Callable[[], None],
        *,
        standby_of: Callable[[int], WorkerId],
        has_room: Callable[[], bool],
    ) -> None:
        """
        Watch nothing until `run`.

        Args:
            lanes: all lanes of the log.
            running: the numbers of those that run here, kept up to date.
            directory: the other workers.
            clock: of all waits.
            moves: shared with the other watches.
            on_change: called when this worker's description for the group has changed.
            standby_of: returns the worker that follows a lane, NOBODY if none does.
            has_room: returns whether enough of this worker's disk is free.
        """
        self.given_up: frozenset[int] = frozenset()
        """Lanes that were claimed, or are to be claimed, by their standbys."""
        self.declined: frozenset[int] = frozenset()
        """All lanes, told to the group only, while a worker that runs none has too little room for any."""
        self._lanes, self._running, self._directory, self._clock = lanes, running, directory, clock
        self._lane_moves, self._on_change, self._standby_of = moves, on_change, standby_of
        self._has_room = has_room
        self._asked_at = -AGAIN_S
        self._taken_back_at = -MOVE_AGAIN_S
        self._low_at = -ROOM_S
        self._low_since: float | None = None

    async def run(self) -> None:
        """Watch until cancelled; every failure is logged."""
        await keep_looking(self._look, WATCH_S, of="disk")

    def take_back(self, owned: Sequence[int]) -> None:
        """Run lanes that the group gives to this worker although it has told that it cannot."""
        if taken := (self.given_up | self.declined).intersection(owned):
            logger.warning("no other worker takes these partitions over", lanes=sorted(taken))
            self.given_up = self.declined = frozenset()
            self._taken_back_at = self._clock.monotonic()
            self._on_change()

    async def _look(self) -> None:
        now = self._clock.monotonic()
        if self._has_room():
            self._low_since = None
        elif self._low_since is None:
            self._low_since = now
        if self._low_since is not None:
            self._low_at = now
            if self._running - self.given_up:
                if now - self._low_since >= LASTS_S:
                    await self._give_up(now)
            elif not self.declined and now - self._taken_back_at >= MOVE_AGAIN_S:
                self.declined = frozenset(range(len(self._lanes)))
                self._on_change()
        elif (self.given_up or self.declined) and now - self._low_at >= self._room_s:
            logger.info("the disk of this worker has had room for a while")
            self.given_up = self.declined = frozenset()
            self._on_change()

    @property
    def _room_s(self) -> float:
        return ROOM_S if self.given_up else PROVED_S

    async def _give_up(self, now: float) -> None:
        """Give up lanes whose standbys say that they can take them, and that have not moved lately."""
        if now - self._asked_at < AGAIN_S:
            return
        self._asked_at = now
        followed = by_standby(
            filterfalse(self._lane_moves.has_moved, sorted(self._running)), self._standby_of
        )
        whole = await ask_standbys(self._directory, followed)
        lost = {number for name in whole for number in followed[name]}
        lost = {
            number for number in lost & self._running if not self._lane_moves.has_moved(number)
        }  # meanwhile
        if not lost or self._has_room():
            return
        logger.error(
            "partitions given up: the disk of this worker is low", lanes=sorted(lost), standbys=sorted(whole)
        )
        self.given_up |= lost
        self._lane_moves.note(lost)
        self._on_change()
