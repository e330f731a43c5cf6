"""Claim: an error that repeats is logged often enough to be seen, counted beyond, and hides nothing else."""

import gc
import logging
import weakref
from typing import Any

import pytest
import structlog

from app.telemetry.line_limit import ALL_MAX, INTERVAL_S, KINDS_MAX, SAME_MAX, LineLimit


class Said:
    """Lines that came through a limit, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limit = LineLimit(lambda: self.now)

    def say(self, event: str, level: str = "error", **fields: Any) -> dict[str, Any] | None:
        try:
            return dict(self.limit(None, level, {"event": event, **fields}))
        except structlog.DropEvent:
            return None

    def count(self, times: int, event: str, level: str = "error", **fields: Any) -> int:
        return sum(self.say(event, level, **fields) is not None for _ in range(times))


def test_line_that_repeats_is_left_out_and_counted_by_the_next() -> None:
    said = Said()
    assert said.count(1_000, "unforeseen error") == SAME_MAX
    said.now += INTERVAL_S
    assert said.say("unforeseen error") == {"event": "unforeseen error", "left_out": 1_000 - SAME_MAX}
    assert said.say("unforeseen error") == {"event": "unforeseen error"}
    assert said.limit.left_out == 1_000 - SAME_MAX


def test_other_texts_levels_and_partitions_are_heard_meanwhile() -> None:
    said = Said()
    said.count(1_000, "lane failed", partition=1)
    assert said.say("lane failed", partition=2) is not None
    assert said.say("lane failed", "info", partition=1) is not None
    assert said.say("index is rebuilt from the log", partition=1) is not None


def test_all_lines_together_are_bounded_too() -> None:
    said = Said()
    assert sum(said.count(1, "lane failed", partition=number) for number in range(2 * ALL_MAX)) == ALL_MAX
    said.now += INTERVAL_S
    assert said.say("lane failed", partition=1) is not None


def test_what_is_asked_for_is_not_limited() -> None:
    assert Said().count(2 * ALL_MAX, "detail", "debug") == 2 * ALL_MAX


def test_libraries_are_limited_by_their_text_and_memory_is_bounded() -> None:
    limit = LineLimit(lambda: 0.0)

    def record(text: str, *args: object) -> logging.LogRecord:
        return logging.LogRecord("library", logging.ERROR, __file__, 1, text, args, None)

    assert sum(limit.filter(record("node %s is gone", number)) for number in range(100)) == SAME_MAX
    for number in range(2 * KINDS_MAX):
        limit.filter(record(f"text {number}"))
    assert len(limit._kinds) <= KINDS_MAX + 1


class Frame:
    """Stands for what an error's traceback holds."""


@pytest.mark.regression("A library that logged a dict failed the limit of lines.")
def test_a_library_may_log_whatever_it_likes_and_nothing_of_it_is_kept() -> None:
    limit = LineLimit(lambda: 0.0)

    def record(said: object) -> logging.LogRecord:
        return logging.LogRecord("library", logging.ERROR, __file__, 1, said, (), None)

    assert limit.filter(record({"a": [1]}))
    assert limit.filter(record("x" * 100_000))
    frame = Frame()
    is_left = weakref.ref(frame)
    assert limit.filter(record(OSError("reset", frame)))
    del frame
    gc.collect()
    assert is_left() is None
    assert sum(len(str(kind)) for kind in limit._kinds) < 2_000
