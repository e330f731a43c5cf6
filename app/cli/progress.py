"""The progress of a command on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.cli.console import note

LINE_S = 10.0
"""The interval of lines."""


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the completed and the total amount."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines() -> Callable[[int, int], None]:
    """Return a function that writes a line if the last one is LINE_S ago."""
    told_at = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal told_at
        if (now := time.monotonic()) - told_at >= LINE_S:
            told_at = now
            note(f"{done:,} of {total:,} ({done / max(total, 1):.0%})")

    return advance
