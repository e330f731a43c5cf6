"""A folder with a queue's file for each process that has one."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from .event_queue import EventQueue
from .model import QueueInUseError

PATTERN = "queue-*.db"


class Folder:
    """Gives each process the first file that no other one has open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, open_file: Callable[[Path], EventQueue]) -> EventQueue:
        """Return the first queue that can be opened."""
        for number in count():  # ends: there are no more processes
            try:
                return open_file(self._path / f"queue-{number}.db")
            except QueueInUseError:
                continue
        raise AssertionError("there is always a next number")

    def adopt_into(self, queue: EventQueue) -> None:
        """
        Move what processes that have ended left to a queue; their files stay for later ones.

        Raises:
            OSError, sqlite3.Error: of a file that cannot be opened, after all others.
        """
        failed: Exception | None = None
        for other in sorted(self._path.glob(PATTERN)):
            if other == queue.path:
                continue
            try:
                queue.take_over(other)
            except QueueInUseError:
                continue
            except Exception as err:
                failed = err
        if failed is not None:
            raise failed
