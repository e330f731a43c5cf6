"""
Supervision: every lane that should run has a live task. Nobody else would notice that one has none.
"""

import asyncio
from collections.abc import Sequence

import structlog

from dedupe.cancellation import is_own_cancellation
from dedupe.errors import IdentityMismatchError
from dedupe.lane.lane import Lane
from dedupe.lane.state import LaneState

RESTART_PAUSE_S = 1.0
"""A lane catches what it can foresee, so its end is a bug: often enough to serve, too seldom to spin."""

log = structlog.get_logger(__name__)


async def keep_running(lane: Lane, *, pause_s: float = RESTART_PAUSE_S) -> None:
    """
    Run the lane until it is drained or another gateway's; start it again whenever it ends otherwise.

    Raises:
        IdentityMismatchError: final; this process must not serve this log.
    """
    while True:
        end: BaseException | None = None
        try:
            await lane.run()
        except IdentityMismatchError:
            raise
        except (Exception, asyncio.CancelledError) as err:
            if is_own_cancellation(err):
                raise
            end = err
        if not lane.should_run:
            return
        lane.metrics.restarts += 1
        log.error(
            "a lane ended by itself, starting it again",
            topic=lane.topic,
            partition=lane.partition,
            exc_info=end,
        )
        await asyncio.sleep(pause_s)


class LocalLanes:
    """Runs all lanes in this process, which is the only one."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """
        Run them until cancelled.

        Raises:
            ExceptionGroup: of IdentityMismatchError; this process must not serve this log.
        """
        async with asyncio.TaskGroup() as running:
            self._tasks = [running.create_task(keep_running(lane)) for lane in self._lanes]

    async def hand_over(self) -> bool:
        """There is nobody else."""
        return False

    async def finish(self, limit_s: float) -> None:
        """Let drained lanes finish, at most so long, in seconds, and end the others."""
        for lane, task in zip(self._lanes, self._tasks, strict=True):
            if lane.state is not LaneState.DRAINING:
                task.cancel()  # it has nothing to finish, and a replay may take minutes
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in late:
            log.error("a partition did not finish in time; its clients retry")
            task.cancel()
