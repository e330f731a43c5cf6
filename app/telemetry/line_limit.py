"""
The limit of log lines: repeated lines are dropped and counted.

In an outage every lane fails every few seconds, and a bug may fail every request: their lines would hide
others. Lines of level debug are not limited.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from structlog.typing import EventDict

INTERVAL_S = 10.0
SAME_MAX = 10
"""The limit of lines of one kind (text, level, topic and partition) in an interval."""

ALL_MAX = 3_000
"""The limit of all lines in an interval: a start with hundreds of partitions logs fewer."""

KINDS_MAX = 5_000
"""The limit of counted kinds; beyond it all counts are cleared."""

TEXT_CHARS_MAX = 500
"""Texts of libraries with the same beginning of this length are one kind."""

_LEFT_OUT = "left_out"


@dataclass(slots=True)
class _Kind:
    """The lines of one kind in the current interval."""

    began: float
    lines: int = 0
    left_out: int = 0


class LineLimit:
    """Decides for each line whether it is logged; a processor of structlog and a filter of logging."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.left_out = 0
        """The total of dropped lines."""
        self._clock = clock
        self._kinds: dict[object, _Kind] = {}
        self._all = _Kind(clock())

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Drop a line beyond the limit; the next logged line of its kind has the number of dropped ones."""
        if method == "debug":
            return event
        kind = (method, event.get("event"), event.get("topic"), event.get("partition"))
        left_out = self._count(kind)
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event[_LEFT_OUT] = left_out
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop lines of libraries beyond the limit, by their text without arguments."""
        text = str(record.msg)[:TEXT_CHARS_MAX]  # `msg` may have any type
        return self._count((record.levelno, text)) is not None

    def _count(self, kind: object) -> int | None:
        """Return the number of lines dropped since the last one of a kind; None to drop this one."""
        now = self._clock()
        if len(self._kinds) > KINDS_MAX:
            self._kinds.clear()
        entry = self._kinds.get(kind)
        if entry is None:
            entry = self._kinds[kind] = _Kind(now)
        for counted in (entry, self._all):
            if now - counted.began >= INTERVAL_S:
                counted.began, counted.lines = now, 0
        if entry.lines >= SAME_MAX or self._all.lines >= ALL_MAX:
            entry.left_out += 1
            self.left_out += 1
            return None
        entry.lines += 1
        self._all.lines += 1
        left_out, entry.left_out = entry.left_out, 0
        return left_out
