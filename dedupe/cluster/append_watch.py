"""
AppendWatch: notices that this worker's appends get no answer, while those of other workers do.

A worker whose large packets to the log vanish passes every fence and heartbeat, so nothing else would move
its lanes. Two proofs of the same seconds are needed: the leader of the lane does not answer a large request
of this worker, on a new connection, and answers one of another worker. So a leader that restarts, refuses,
throttles or answers nobody moves no lane, and neither does what befalls the only worker, or the last one.

A worker that has given up its lanes gets none until each of their leaders has answered it for PROVED_S.
A leader that is silent delays what another one has to prove by nothing: each is probed by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from dedupe.cluster.codec import APPENDS
from dedupe.cluster.lane_moves import LaneMoves
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.cluster.watching import keep_looking
from dedupe.model.clock import Clock
from dedupe.model.errors import GatewayError
from dedupe.partition.lane import Lane

# In seconds:
LATE_S = 2.0  # for an append, or for a lane that has failed, before it is looked into
PROBE_S = 2.0  # for the answer to this worker's own large request, and for the other workers' answers
PROBE_AGAIN_S = 0.25  # after one that failed at once: a leader that comes back meanwhile answers the others
OTHERS_PROBE_S = 1.5  # for another worker's large request: less, so that its answer is in time
AGAIN_S = 5.0  # between two probes of one lane
PROVED_S = 60.0  # of answered probes, before this worker gets lanes again
WATCH_S = 0.1

UNANSWERED_MAX = 3
"""Appends of a lane without an answer within a minute; the next one is looked into at once."""

logger = structlog.get_logger(__name__)


class AppendWatch:
    """The lanes of this worker whose leaders answer other workers only."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        running: set[int],
        directory: PeerDirectory,
        clock: Clock,
        moves: LaneMoves,
        on_change: Callable[[], None],
    ) -> None:
        """
        Watch nothing until `run`.

        Args:
            lanes: all lanes of the log.
            running: the numbers of those that run here, kept up to date.
            directory: the other workers.
            clock: of all waits.
            moves: shared with the other watches.
            on_change: called when lanes were given up, or the worker may have lanes again.
        """
        self.given_up: frozenset[int] = frozenset()
        """Lanes that this worker does not run, and tells the group so, until it is proved again."""
        self.moves = 0  # lanes given up so far
        self._lanes, self._running, self._directory = lanes, running, directory
        self._clock, self._on_change = clock, on_change
        self._lane_moves = moves
        self._probed_at: dict[int, float] = {}
        self._proved_since: dict[str, float] = {}  # by leader
        self._probes: dict[str, asyncio.Task[None]] = {}  # that are in progress, by leader

    async def run(self) -> None:
        """Watch until cancelled; every failure is logged."""
        try:
            await keep_looking(self._look, WATCH_S, of="appends")
        finally:
            for probe in self._probes.values():
                probe.cancel()

    async def can_append(self, number: int, leader: str) -> bool:
        """Return whether the leader of a lane answers this worker, to which its owner may give it up now."""
        if self.given_up or self._lane_moves.has_moved(number):
            return False  # its owner may have been restarted since, and does not know
        own = [self._lanes[each] for each in sorted(self._running) if self._lanes[each].log.leader == leader]
        if own:
            return await _passes(own[0].log.probe, OTHERS_PROBE_S)
        log = self._lanes[number].log
        return await _passes(log.bounds, OTHERS_PROBE_S) and log.leader == leader

    def take_back(self, owned: Sequence[int]) -> None:
        """Run lanes again that the group gives to this worker although it has told that it cannot."""
        if taken := self.given_up.intersection(owned):
            logger.warning("no other worker takes these partitions over", lanes=sorted(taken))
            self.given_up = frozenset()
            self._on_change()

    async def _look(self) -> None:
        now = self._clock.monotonic()
        self._lane_moves.hear()
        for leader in [leader for leader, probe in self._probes.items() if probe.done()]:
            self._probes.pop(leader).result()
        late = [number for number in self._running - self.given_up if self._is_late(number, now)]
        self._probe(late, self._check, now)
        self._probe(self.given_up, self._prove, now)

    def _probe(
        self, numbers: Iterable[int], probe: Callable[[int], Coroutine[Any, Any, None]], now: float
    ) -> None:
        """Begin a probe of each leader that has none in progress, by the lane last probed longest ago."""
        due = [number for number in numbers if now - self._probed_at.get(number, -AGAIN_S) >= AGAIN_S]
        for number in sorted(due, key=lambda number: (self._probed_at.get(number, -AGAIN_S), number)):
            leader = self._lanes[number].log.leader
            if leader not in self._probes:
                self._probes[leader] = asyncio.create_task(probe(number))

    def _is_late(self, number: int, now: float) -> bool:
        lane = self._lanes[number]
        since = [at for at in (lane.appending_since, lane.health.failing_since) if at is not None]
        is_often = lane.health.unanswered_appends() >= UNANSWERED_MAX
        return bool(since) and (is_often or now - min(since) >= LATE_S)

    async def _check(self, number: int) -> None:
        """Give all lanes of a leader up if it answers another worker and not this one."""
        self._probed_at[number] = self._clock.monotonic()
        leader = self._lanes[number].log.leader
        is_answered, others = await asyncio.gather(
            _passes(self._lanes[number].log.probe, PROBE_S, is_again=True), self._ask_others(number, leader)
        )
        now = self._clock.monotonic()
        if is_answered or not others or not self._is_late(number, now):
            return
        lost = {each for each in self._running if self._lanes[each].log.leader == leader}
        lost = {each for each in lost if not self._lane_moves.has_moved(each)}
        if not lost:
            return
        logger.error(
            "partitions given up: their leader answers other workers, and not this one",
            lanes=sorted(lost),
            leader=leader,
            others=others,
        )
        self.given_up |= lost
        self.moves += len(lost)
        self._lane_moves.note(lost)
        self._proved_since.pop(leader, None)
        self._on_change()

    async def _prove(self, number: int) -> None:
        """Probe on behalf of all lanes of a leader that were given up; have them again after PROVED_S."""
        self._probed_at[number] = now = self._clock.monotonic()
        leader = self._lanes[number].log.leader
        if not await _passes(self._lanes[number].log.probe, PROBE_S):
            self._proved_since.pop(leader, None)
            return
        if now - self._proved_since.setdefault(leader, now) >= PROVED_S:
            proved = {each for each in self.given_up if self._lanes[each].log.leader == leader}
            logger.info("the log answers this worker again", lanes=sorted(proved), leader=leader)
            self.given_up -= proved
            self._on_change()

    async def _ask_others(self, number: int, leader: str) -> list[str]:
        """Return the workers that the leader answers now."""
        names = [name for name, status in self._directory.alive().items() if not status.is_leaving]
        asked = [self._directory.request(name, APPENDS, [number, leader], PROBE_S) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [name for name, answer in zip(names, answers, strict=True) if answer is True]


async def _passes(request: Callable[[], Awaitable[Any]], limit_s: float, *, is_again: bool = False) -> bool:
    """Return whether a request is answered in time; `is_again` repeats one that fails before."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while True:
                with suppress(GatewayError):
                    await request()
                    return True
                if not is_again:
                    return False
                await asyncio.sleep(PROBE_AGAIN_S)
    return False
