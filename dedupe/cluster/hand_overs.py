"""HandOvers: why this worker hands lanes over to others although it runs, and which ones."""

import asyncio
from collections.abc import Callable, Sequence

from dedupe.cluster.append_watch import AppendWatch
from dedupe.cluster.assignment import WorkerId
from dedupe.cluster.disk_watch import DiskWatch
from dedupe.cluster.lane_moves import LaneMoves
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.cluster.slow_watch import SlowWatch
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane


class HandOvers:
    """The watches of one worker. A lane moves for one of their reasons at most once in MOVE_AGAIN_S."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        running: set[int],
        directory: PeerDirectory,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        standby_of: Callable[[int], WorkerId],
        has_disk_room: Callable[[], bool],
    ) -> None:
        """Watch nothing until `run`; see AppendWatch, SlowWatch and DiskWatch."""
        watched = lanes, running, directory, clock, LaneMoves(directory, clock), on_change
        self.appends = AppendWatch(*watched)
        self.slow = SlowWatch(*watched, standby_of=standby_of)
        self.disk = DiskWatch(*watched, standby_of=standby_of, has_room=has_disk_room)

    @property
    def given_up(self) -> frozenset[int]:
        """Lanes that this worker has ended, and that their standbys claim."""
        return self.appends.given_up | self.disk.given_up

    @property
    def left(self) -> frozenset[int]:
        """Lanes that were given up, or are served here until the group has assigned them to others."""
        return self.given_up | self.slow.handed_over

    @property
    def unwanted(self) -> frozenset[int]:
        """Lanes that the group is told to assign to others; any is enough for it to assign none here."""
        return self.left | self.disk.declined

    def take_back(self, owned: Sequence[int]) -> None:
        """Run lanes again that the group gives to this worker although they are unwanted."""
        for watch in (self.appends, self.slow, self.disk):
            watch.take_back(owned)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for watch in (self.appends, self.slow, self.disk):
                tasks.create_task(watch.run())
