"""
Whether the process has file descriptors left. Without one, the servers close each new connection unanswered,
and their event loop says nothing of it.
"""

import asyncio
import errno
import os
from collections.abc import Callable

import structlog

CHECK_INTERVAL_S = 1.0
SAID_EVERY_S = 60.0

OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})

logger = structlog.get_logger(__name__)


class OpenFiles:
    """What the last check found."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self.is_out = False
        """Whether no descriptor was left."""
        self.checks_out = 0
        """The number of checks, about one a second, that found none left."""
        self._now = now
        self._said_at_s: float | None = None

    def look(self) -> None:
        """Open a file, and say once a minute that this is impossible."""
        was_out, self.is_out, error = self.is_out, False, ""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as err:
            self.is_out, error = err.errno in OUT_OF_FILES, str(err)
        if was_out and not self.is_out:
            logger.info("file descriptors are left again")
        if not self.is_out:
            return
        self.checks_out += 1
        now = self._now()
        if self._said_at_s is None or now - self._said_at_s >= SAID_EVERY_S:
            self._said_at_s = now
            logger.error("no file descriptor is left: new connections are closed unanswered", error=error)

    async def watch(self) -> None:
        """Look at each interval, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(CHECK_INTERVAL_S)
