"""
Time as the core sees it: injected, so that tests own it.

Log time starts at the wall clock and advances with the monotonic clock, so a wall clock that is
set while the process runs moves nothing; a wrong clock at start is reported by recovery.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What the core may ask about time."""

    def now_ms(self) -> int:
        """Return log time: milliseconds since the epoch, never decreasing in one process."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set."""


class SystemClock:
    """The real clock."""

    def __init__(self) -> None:
        self._start_ms = time.time() * 1000
        self._start_monotonic = time.monotonic()

    def now_ms(self) -> int:
        """See Clock."""
        return int(self._start_ms + (time.monotonic() - self._start_monotonic) * 1000)

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()


class Deadline:
    """One request's time budget, consumed by whatever waits on its behalf."""

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
