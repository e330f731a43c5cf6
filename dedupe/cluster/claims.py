"""Claims: which lanes a standby takes over without an assignment, since their owner does not serve them."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from dedupe.cluster.assignment import Assignment
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane

FAILING_S = 15.0
"""How long an owner reports a lane as failing before its standby, whose own reads succeed, claims it."""
INDEX_S = 1.5
"""How long an owner lacks an index before it says so, and its standby claims the lane: less moves none."""

logger = structlog.get_logger(__name__)


def without_index(lanes: Sequence[Lane], numbers: Iterable[int], clock: Clock) -> frozenset[int]:
    """Return those of the numbers whose lanes have had no whole index for INDEX_S."""
    since = clock.monotonic() - INDEX_S
    lacking = {number: lanes[number].without_index_since for number in numbers}
    return frozenset(number for number, at in lacking.items() if at is not None and at <= since)


class Claims:
    """
    Decides which lanes to claim.

    Each is claimed once a generation, and only from an owner whose status confirmed the assignment. Otherwise
    two workers that cannot reach each other would claim each other's lanes again and again.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        directory: PeerDirectory,
        clock: Clock,
        is_standby: Callable[[int], bool],
    ) -> None:
        """`lanes` are all lanes of the log; `is_standby` says of one whether this worker is its standby."""
        self.owner_since = [-1] * len(lanes)
        """By lane: the generation of its owner's assignment, or the one after a claim."""
        self._lanes, self._directory, self._clock, self._is_standby = lanes, directory, clock, is_standby
        self._failing_since: dict[int, float] = {}  # lanes that fail at their owner, followed closely here

    def due(self, assignment: Assignment) -> Iterator[int]:
        """Yield followed lanes whose owner is down, gave them up, lacks their index, or has long failed."""
        now, directory = self._clock.monotonic(), self._directory
        failing = frozenset[int]().union(*(status.failing for status in directory.alive().values()))
        self._failing_since = {
            number: self._failing_since.get(number, now)
            for number, lane in enumerate(self._lanes)
            if number in failing and lane.follower.is_caught_up
        }
        for number, (lane, owner) in enumerate(zip(self._lanes, assignment.owners, strict=True)):
            is_down = owner in directory.down
            status = directory.last_status(owner)
            is_given_up = status is not None and number in status.given_up
            has_failed = now - self._failing_since.get(number, now) >= FAILING_S
            lacks_index = status is not None and number in status.without_index
            is_lost = is_down or is_given_up or has_failed or lacks_index
            if not is_lost or not self._is_standby(number):
                continue
            if status is None or status.generation < self.owner_since[number]:
                continue
            if directory.server_of(number) is None and lane.follower.is_caught_up:
                logger.warning(
                    f"partition claimed: its owner {'is down' if is_down else 'cannot serve it'}",
                    topic=lane.topic,
                    partition=lane.partition,
                    owner=owner,
                    generation=assignment.generation,
                )
                yield number
