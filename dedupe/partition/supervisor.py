"""Supervision: each lane that should run has a live task."""

import asyncio
from collections.abc import Sequence

import structlog

from dedupe.cancellation import is_own_cancellation
from dedupe.model.errors import IdentityMismatchError
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState

RESTART_PAUSE_S = 1.0
"""The pause before a lane's task is restarted. Lanes handle failures themselves, so its end is a bug."""

logger = structlog.get_logger(__name__)


async def keep_running(lane: Lane, *, pause_s: float = RESTART_PAUSE_S) -> None:
    """
    Run a lane, and restart it after every failure, until it is drained or another gateway owns it.

    Raises:
        IdentityMismatchError: final; this process must not serve this log.
    """
    while True:
        error: BaseException | None = None
        try:
            await lane.run()
        except IdentityMismatchError:
            raise
        except (Exception, asyncio.CancelledError) as err:
            if is_own_cancellation(err):
                raise
            error = err
        if not lane.should_run:
            return
        lane.metrics.restarts += 1
        logger.error("lane ended, restarting it", topic=lane.topic, partition=lane.partition, exc_info=error)
        await asyncio.sleep(pause_s)


class LocalLanes:
    """Runs all lanes in this process, without a group; see app.process.life.Lanes."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """
        Run all lanes until cancelled.

        Raises:
            ExceptionGroup: of IdentityMismatchError; this process must not serve this log.
        """
        async with asyncio.TaskGroup() as running:
            self._tasks = [running.create_task(keep_running(lane)) for lane in self._lanes]

    async def hand_over(self) -> bool:
        """Return False: there is no other worker."""
        return False

    async def go_on(self) -> None:
        """Nothing of this round is kept, and nobody else asks for these lanes."""

    async def finish(self, limit_s: float) -> None:
        """Let drained lanes finish within `limit_s` seconds, and cancel all others."""
        for lane, task in zip(self._lanes, self._tasks, strict=True):
            if lane.state is not LaneState.DRAINING:
                task.cancel()  # its queue is empty, and a replay may take minutes
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in late:
            logger.error("partition did not finish in time; clients retry")
            task.cancel()
