"""The loop of a watch: looks at intervals until cancelled, and outlives whatever fails."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from dedupe.cancellation import is_own_cancellation

RETRY_S = 1.0

logger = structlog.get_logger(__name__)


async def keep_looking(look: Callable[[], Awaitable[None]], every_s: float, *, of: str) -> None:
    """Call `look` every `every_s` seconds until cancelled; log each failure with the name of the watch."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await look()
        except (Exception, asyncio.CancelledError) as err:
            if is_own_cancellation(err):
                raise
            logger.exception("a watch failed", watch=of)
            await asyncio.sleep(RETRY_S)


async def done_or_woken(task: "asyncio.Future[Any]", wake: asyncio.Event) -> None:
    """Wait until the task ends or the event is set, and clear the event."""
    woken: asyncio.Future[Any] = asyncio.ensure_future(wake.wait())
    try:
        await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        woken.cancel()
    wake.clear()
