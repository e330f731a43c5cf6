"""
Supervision: every lane that should run has a live task. Nobody else would notice that one has none.
"""

import asyncio

import structlog

from dedupe.errors import IdentityMismatchError
from dedupe.lane import Lane

RESTART_PAUSE_S = 1.0
"""A lane catches what it can foresee, so its end is a bug: often enough to serve, too seldom to spin."""

log = structlog.get_logger(__name__)


async def keep_running(lane: Lane, *, pause_s: float = RESTART_PAUSE_S) -> None:
    """
    Run the lane until it is drained or another gateway's; start it again whenever it ends otherwise.

    Cancelling it cancels the lane, and waits for its end.

    Raises:
        IdentityMismatchError: final; this process must not serve this log.
    """
    while True:
        running = asyncio.ensure_future(lane.run())
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait({running})
            raise
        err = asyncio.CancelledError() if running.cancelled() else running.exception()
        if isinstance(err, IdentityMismatchError):
            raise err
        if not lane.should_run:
            return
        lane.metrics.restarts += 1
        log.error(
            "a lane ended by itself, starting it again",
            topic=lane.topic,
            partition=lane.partition,
            exc_info=err,
        )
        await asyncio.sleep(pause_s)
