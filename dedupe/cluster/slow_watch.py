"""
SlowWatch: notices that this worker commits far slower than the others do, and hands its lanes over.

Each worker tells the others the median time of its commits by the leader of their partitions. A worker that
is slow at a leader for LASTS_S asks the standbys of its lanes to measure that leader at the same time as it
does itself, by a probe that waits for no replica. So a slow broker, disk or replica moves no lane, since it
is as slow for all; neither does a quota, a refusal or an outage, since only commits that succeed without a
pause are measured. Without a healthy standby of each lane nothing moves: the rebuild of
an index would take longer than slow commits do.

The lanes are served here until the group has assigned them to others, as in a drain.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median, median_high
from typing import Any, NamedTuple

import structlog

from dedupe.cluster.append_watch import PROVED_S
from dedupe.cluster.assignment import WorkerId
from dedupe.cluster.lane_moves import LaneMoves
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.cluster.standbys import STANDBY_S, ask_standbys, by_standby
from dedupe.cluster.watching import keep_looking
from dedupe.model.clock import Clock
from dedupe.model.errors import GatewayError
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState

TIMES = 10
"""How many times the others' commits, or their answers of the leader, a slow worker's take."""

# In seconds:
SLOW_S = 0.5  # the least that is slow
WINDOW_S = 5.0  # of which the median is told
LASTS_S = 30.0  # of slowness, before this worker looks into it
WATCH_S = 1.0
AGAIN_S = 5.0  # between two probes
PROBE_S = 3.0  # for this worker's own probe

logger = structlog.get_logger(__name__)


class Took(NamedTuple):
    """The time of a probe."""

    seconds: float
    is_answered: bool
    """A connection that is not made in time is slow, too, and no answer."""


class SlowWatch:
    """The commit times of this worker, and the lanes that it hands over because of them."""

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
        """
        self.handed_over: frozenset[int] = frozenset()
        """Lanes that this worker tells the group not to assign to it, until it is quick again."""
        self.commit_ms: Mapping[str, int] = {}
        """The median time of a commit in the last WINDOW_S, by leader."""
        self._lanes, self._running, self._directory, self._clock = lanes, running, directory, clock
        self._lane_moves, self._standby_of, self._on_change = moves, standby_of, on_change
        self._counted: dict[int, tuple[int, float, float]] = {}  # commits, their seconds, throttled seconds
        self._samples: defaultdict[str, deque[tuple[float, float]]] = defaultdict(deque)  # time, seconds
        self._slow_since: dict[str, float] = {}  # by leader
        self._probed_at = -AGAIN_S
        self._probed = 0  # the lane by which it was slow
        self._quick_since: float | None = None

    async def run(self) -> None:
        """Watch until cancelled; every failure is logged."""
        await keep_looking(self._look, WATCH_S, of="slow commits")

    @property
    def is_slow(self) -> bool:
        """Whether commits here are slower than elsewhere, or were when the lanes were handed over."""
        now = self._clock.monotonic()
        is_seen = any(
            now - since >= LASTS_S and self._others(leader) for leader, since in self._slow_since.items()
        )
        return is_seen or bool(self.handed_over)

    async def stands_by(self, numbers: Sequence[int], probed: int) -> float | None:
        """
        Return how long the leader of one lane takes to answer this worker, in seconds.

        None if it does not, or this worker could not take over each of the lanes that it follows at once, or
        one of them has moved too recently: its owner may have been restarted since, and does not know.
        """
        is_behind = not all(self._lanes[number].follower.is_caught_up for number in numbers)
        if is_behind or self.handed_over or any(map(self._lane_moves.has_moved, numbers)):
            return None
        took = await _time_of(self._lanes[probed].log.probe(), STANDBY_S)
        return took.seconds if took.is_answered else None

    def take_back(self, owned: Sequence[int]) -> None:
        """Keep lanes that the group assigns to this worker although it has handed them over."""
        if taken := self.handed_over.intersection(owned):
            logger.warning("no other worker takes these partitions over", lanes=sorted(taken))
            self.handed_over = frozenset()
            self._on_change()

    # ---- measuring

    async def _look(self) -> None:
        now = self._clock.monotonic()
        self._measure(now)
        slow = self._slow_leaders(now)
        if now - self._probed_at < AGAIN_S:
            return
        if self.handed_over:
            await self._prove()
        elif lasting := [leader for leader in slow if now - self._slow_since[leader] >= LASTS_S]:
            await self._check(lasting[0])

    def _measure(self, now: float) -> None:
        """Note what the commits of the last moment took, and tell the medians if they have changed."""
        for number in self._running:
            leader = self._lanes[number].log.leader
            if (seconds := self._seconds_of_commit(number, now)) is not None and leader:
                self._samples[leader].append((now, seconds))
        told = {}
        for leader, samples in self._samples.items():
            while samples and now - samples[0][0] >= WINDOW_S:
                samples.popleft()
            if samples:
                told[leader] = round(1000 * median(seconds for _, seconds in samples))
        if told != self.commit_ms:
            self.commit_ms = told
            self._directory.announce()

    def _seconds_of_commit(self, number: int, now: float) -> float | None:
        """Return the mean of a lane's commits since the last look, or how long one has lasted so far."""
        lane = self._lanes[number]
        commits, seconds, throttled_s = self._counted.get(number, (0, 0.0, 0.0))
        metrics = lane.metrics
        self._counted[number] = metrics.commits, metrics.commit_seconds, lane.throttled_s
        if lane.state is not LaneState.ACTIVE or lane.is_throttled or lane.throttled_s != throttled_s:
            return None
        of_commits = metrics.commits - commits
        mean = (metrics.commit_seconds - seconds) / of_commits if of_commits > 0 else 0.0
        since = lane.appending_since
        return max(mean, 0.0 if since is None else now - since) or None

    def _others(self, leader: str) -> list[int]:
        """Return the medians that other workers tell of a leader, in milliseconds."""
        alive = self._directory.alive().values()
        return [of.commit_ms[leader] for of in alive if leader in of.commit_ms and not of.is_leaving]

    def _slow_leaders(self, now: float) -> list[str]:
        """Return the leaders at which this worker is slow now, and remember since when."""
        slow = [
            leader
            for leader, ms in self.commit_ms.items()
            if ms >= 1000 * SLOW_S and ms >= TIMES * median_high(self._others(leader) or [0])
        ]
        self._slow_since = {leader: self._slow_since.get(leader, now) for leader in slow}
        return slow

    # ---- handing over

    async def _check(self, leader: str) -> None:
        """Hand all lanes over if their standbys get answers of the leader that this worker waits for."""
        self._probed_at = self._clock.monotonic()
        lanes = sorted(self._running)
        led = [number for number in lanes if self._lanes[number].log.leader == leader]
        if not led or any(map(self._lane_moves.has_moved, lanes)):
            return
        followed = by_standby(lanes, self._standby_of)
        own, whole = await asyncio.gather(
            _time_of(self._lanes[led[0]].log.probe(), PROBE_S),
            ask_standbys(self._directory, followed, led[0]),
        )
        standby_s = max(whole.values()) if whole.keys() == followed.keys() else None
        is_other = lanes != sorted(self._running) or any(map(self._lane_moves.has_moved, lanes))
        if is_other or standby_s is None or own.seconds < max(SLOW_S, TIMES * standby_s):
            return
        logger.error(
            "partitions handed over: their leader answers this worker far slower than their standbys",
            lanes=lanes,
            leader=leader,
            commit_ms=self.commit_ms.get(leader),
            others_ms=self._others(leader),
        )
        self.handed_over = frozenset(lanes)
        self._lane_moves.note(lanes)
        self._probed, self._quick_since = led[0], None
        self._on_change()

    async def _prove(self) -> None:
        """Probe for all lanes that were handed over; have lanes again after PROVED_S of quick answers."""
        now = self._probed_at = self._clock.monotonic()
        took = await _time_of(self._lanes[self._probed].log.probe(), PROBE_S)
        if not took.is_answered or took.seconds >= SLOW_S:
            self._quick_since = None
            return
        self._quick_since = now if self._quick_since is None else self._quick_since
        if now - self._quick_since >= PROVED_S:
            logger.info("the log answers this worker as quickly as others again")
            self.handed_over = frozenset()
            self._on_change()


async def _time_of(request: Awaitable[Any], limit_s: float) -> Took:
    """Return how long a request took, the limit at most."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    is_answered = False
    with suppress(GatewayError, TimeoutError):
        async with asyncio.timeout(limit_s):
            await request
        is_answered = True
    return Took(loop.time() - began_at, is_answered)
