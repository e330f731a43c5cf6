"""
Supervision: every lane that should run has a live task. Nobody else would notice that one has none.
"""

import asyncio

import structlog

from dedupe.errors import IdentityMismatchError
from dedupe.lane.health import is_own_cancellation
from dedupe.lane.lane import Lane

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
