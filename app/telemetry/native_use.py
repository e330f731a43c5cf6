"""The use of the native module by a worker."""

import asyncio
from collections.abc import Callable

import structlog

LOOK_INTERVAL_S = 60.0
"""How often at most faults are logged."""

OTHER_BODIES = ("large", "unreadable", "form")
"""Why a body is left to the Python code: it is larger than what is read at once, no JSON, or not plain."""

logger = structlog.get_logger(__name__)


class NativeUse:
    """Counts since the start."""

    def __init__(self, version: str, faults: Callable[[], tuple[int, str]]) -> None:
        """`faults`: returns the number of the module's faults in this process, and what the last one was."""
        self.version = version
        self.events = 0
        """The events that the module has identified."""
        self.odd_events = 0
        """The events in bodies that it has read, which the Python code has identified."""
        self.other_events = 0
        """The events of all other bodies, which the Python code has identified."""
        self.other_bodies = dict.fromkeys(OTHER_BODIES, 0)
        """The bodies that it has left to the Python code, by the reason."""
        self._faults = faults
        self._told = 0

    @property
    def panics(self) -> int:
        """Its faults, each of which the Python code has made good."""
        return self._faults()[0]

    def look(self) -> None:
        """Log the faults since the last look, if there are any."""
        count, last = self._faults()
        if count > self._told:
            logger.warning(
                "the native module failed, and the Python code did its work",
                faults=count - self._told,
                last=last,
            )
        self._told = count

    async def watch(self) -> None:
        """Look at each interval, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)
