"""
How much may be logged: under errors that repeat, enough lines to see them and a count of the rest.

An outage fails every lane every few seconds, and a bug every request; what is said a thousandth time only
hides what else is said. Lines of level debug are not limited: somebody wants to see them all.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from structlog.typing import EventDict

INTERVAL_S = 10.0
SAME_MAX = 10
"""Lines of one text, level, topic and partition in an interval."""

ALL_MAX = 3_000
"""Lines of all kinds in an interval: a start with hundreds of partitions says less."""

KINDS_MAX = 5_000
"""Texts of libraries may be many; what was counted of each is forgotten then."""

TEXT_CHARS_MAX = 500
"""Of a library's text: what two of them have in common up to there makes them the same."""

_LEFT_OUT = "left_out"


@dataclass(slots=True)
class _Kind:
    """What was said of one kind in the present interval."""

    began: float
    lines: int = 0
    left_out: int = 0


class LineLimit:
    """Says of each line whether it may be logged; a processor of structlog and a filter of logging."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take a clock in seconds."""
        self.left_out = 0
        """Lines that were not logged, in all."""
        self._clock = clock
        self._kinds: dict[object, _Kind] = {}
        self._all = _Kind(clock())

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Drop a line that is one too many; the next one of its kind says how many there were."""
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
        """Do the same for what libraries log, by its text without its arguments."""
        text = str(record.msg)[:TEXT_CHARS_MAX]  # it may be anything: an exception, a dict
        return self._count((record.levelno, text)) is not None

    def _count(self, kind: object) -> int | None:
        """Return how many were left out since the last line of a kind; None if this one is as well."""
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
