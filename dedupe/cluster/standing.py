"""
Standing: whether another worker of the group can do what this one cannot. Decides readiness and nothing else.

A worker that reaches fewer lanes than another one is better left out by load balancers. An outage that all
share takes nobody out: a load balancer's own error page has no Retry-After, and no other worker would do
better. So a worker compares itself only with workers that it hears, by what they say of themselves.
"""

from collections.abc import Sequence

from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState

OUTDONE_S = 3.0
"""How long another worker must serve lanes that this one cannot: lanes that move are missed for a moment."""
HYSTERESIS_S = 10.0
"""How long a worker that was outdone stays so at least, so that readiness does not flap."""


class Standing:
    """This worker's ability beside that of the others."""

    def __init__(self, lanes: Sequence[Lane], directory: PeerDirectory, clock: Clock) -> None:
        """`lanes` are all lanes of the log, those of quarantine last."""
        self.is_outdone = False
        """Whether a worker that is heard serves lanes, itself or by others, that this one cannot."""
        self.is_outage = False
        """Whether other workers are heard, and none of them serves a clean lane."""
        self._lanes, self._directory = lanes, directory
        self._clean = {number for number, lane in enumerate(lanes) if lane.topic == lanes[0].topic}
        self._clock = clock
        self._less_since: float | None = None
        self._outdone_at = 0.0

    def unserved(self) -> frozenset[int]:
        """Return the lanes that are neither served here nor in reach."""
        return frozenset(
            number
            for number, lane in enumerate(self._lanes)
            if lane.state is not LaneState.ACTIVE and self._directory.server_link(number) is None
        )

    def update(self, unserved: frozenset[int]) -> None:
        """Compare the lanes that cannot be served here with those of each other worker."""
        now = self._clock.monotonic()
        others = [s.unserved for s in self._directory.alive().values() if s.unserved is not None]
        self.is_outage = bool(others) and all(self._clean <= other for other in others)
        if not any(unserved - other for other in others):
            self._less_since = None
            self.is_outdone = self.is_outdone and now - self._outdone_at < HYSTERESIS_S
            return
        self._less_since = now if self._less_since is None else self._less_since
        if not self.is_outdone and now - self._less_since >= OUTDONE_S:
            self.is_outdone, self._outdone_at = True, now
