"""
The clock of the core, which tests replace.

Log time starts at the wall clock and advances with the time since boot: setting the wall clock has no effect
on a running process, and the sleep of the machine counts. The brokers or app.process.clock_check refuse a
clock that is wrong at the start, or recovery reports it.
"""

import time
from typing import Protocol

SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that continues while the machine sleeps; Linux's CLOCK_MONOTONIC does not, macOS's does."""


class Clock(Protocol):
    """Log time and elapsed time."""

    def now_ms(self) -> int:
        """Return log time: milliseconds since the epoch, never decreasing in one process."""

    def monotonic(self) -> float:
        """Return seconds of a clock that is never set."""


class SystemClock:
    """The real clock."""

    def __init__(self) -> None:
        self._boot_ms = (time.time() - time.clock_gettime(SINCE_BOOT)) * 1000

    def now_ms(self) -> int:
        return int(self._boot_ms + time.clock_gettime(SINCE_BOOT) * 1000)

    monotonic = staticmethod(time.monotonic)


class Deadline:
    """The time limit of one request."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._at = clock.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - self._clock.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time limit is over."""
        return self.remaining_s == 0
