"""
The clock of the core, which tests replace.

Log time starts at the wall clock and advances with the time since boot: setting the wall clock has no effect
on a running process, and the sleep of the machine counts. The brokers or app.process.clock_check refuse a
clock that is wrong at the start, or recovery reports it. After a refusal of the brokers log time follows the
wall clock once more, which may have been corrected since, or have gone on while the machine was paused.
"""

import time
from typing import Protocol

SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that continues while the machine sleeps; Linux's CLOCK_MONOTONIC does not, macOS's does."""


APART_S = 60.0
"""Log time and the wall clock are that far apart only if one of them was set, or the machine was paused."""


class Clock(Protocol):
    """Log time and elapsed time."""

    def now_ms(self) -> int:
        """Return log time: milliseconds since the epoch, never decreasing in one process."""

    def monotonic(self) -> float:
        """Return seconds of a clock that is never set."""


class SystemClock:
    """The real clock."""

    def __init__(self) -> None:
        self._boot_ms = _wall_ms_at_boot()

    @property
    def offset_s(self) -> float:
        """Log time minus the wall clock, in seconds."""
        return (self._boot_ms - _wall_ms_at_boot()) / 1000

    def follow_wall_clock(self) -> float:
        """
        Set log time to the wall clock if they are apart by more than APART_S.

        Records stay in order, since a partition's log time is never less than that of its newest record.

        Returns:
            By how much log time was ahead, in seconds; 0 if nothing has changed.
        """
        offset_s = self.offset_s
        if abs(offset_s) <= APART_S:
            return 0.0
        self._boot_ms = _wall_ms_at_boot()
        return offset_s

    def now_ms(self) -> int:
        return int(self._boot_ms + time.clock_gettime(SINCE_BOOT) * 1000)

    monotonic = staticmethod(time.monotonic)


def _wall_ms_at_boot() -> float:
    return (time.time() - time.clock_gettime(SINCE_BOOT)) * 1000


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
        return self._clock.monotonic() >= self._at
