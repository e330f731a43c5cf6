"""
Time as the core sees it: injected, so that tests own it.

Log time starts at the wall clock and advances with the time since boot, so a wall clock that is set
while the process runs moves nothing, and a machine that sleeps does not fall behind. A clock that is
wrong at start is refused by the brokers or by app.process.clock_check, or reported by recovery.
"""

import time
from typing import Protocol

SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, as macOS's CLOCK_MONOTONIC does and Linux's does not."""


class Clock(Protocol):
    """Log time and elapsed time."""

    def now_ms(self) -> int:
        """Return log time: milliseconds since the epoch, never decreasing in one process."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""


class SystemClock:
    """The real clock."""

    def __init__(self) -> None:
        self._boot_ms = (time.time() - time.clock_gettime(SINCE_BOOT)) * 1000

    def now_ms(self) -> int:
        return int(self._boot_ms + time.clock_gettime(SINCE_BOOT) * 1000)

    monotonic = staticmethod(time.monotonic)


class Deadline:
    """The time limit of one request, shared by everything that waits for it."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._at = clock.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - self._clock.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.remaining_s == 0
