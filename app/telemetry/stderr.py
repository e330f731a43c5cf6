"""
stderr for a service: writing never raises and never blocks.

A full disk, or a pipe that is not read, must not stop events, so a thread of its own writes. stderr is not
set to non-blocking instead, since that would affect every process that shares it.
"""

import atexit
import io
import os
import select
import sys
from queue import SimpleQueue
from threading import Event, Thread

TEXTS_MAX = 10_000
"""The limit of queued texts; the start of 1,024 partitions logs a third of it."""

DRAIN_TIMEOUT_S = 1.0
"""How long a process that ends waits for its last lines."""


class LossyStream(io.TextIOBase):
    """Writes to a file descriptor, or drops and counts the lines."""

    def __init__(self, descriptor: int) -> None:
        """Start the writing thread; it never closes the descriptor."""
        self._descriptor = descriptor
        self._texts: SimpleQueue[str | Event] = SimpleQueue()  # unlike Queue, a finalizer may log into it
        self._lines_refused = 0
        self._lines_failed = 0
        Thread(target=self._run, name="stderr", daemon=True).start()

    @property
    def lines_lost(self) -> int:
        """The number of lines dropped because the queue was full, or whose write failed."""
        return self._lines_refused + self._lines_failed

    def write(self, text: str) -> int:
        """Queue a text; never raises or blocks. Thread-safe."""
        if self._texts.qsize() < TEXTS_MAX:
            self._texts.put(text)
        else:
            self._lines_refused += text.count("\n")
        return len(text)

    def drain(self, timeout_s: float) -> None:
        """Wait until all texts so far are written or lost."""
        is_done = Event()
        self._texts.put(is_done)
        is_done.wait(timeout_s)

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def _run(self) -> None:
        while True:
            text = self._texts.get()
            if isinstance(text, Event):
                text.set()
                continue
            try:
                self._write(text.encode(errors="backslashreplace"))
            except OSError:
                self._lines_failed += text.count("\n")

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process made it non-blocking
                select.select([], [self._descriptor], [])


def protect_stderr() -> None:
    """Replace this process's stderr, even if it is closed, by a LossyStream."""
    descriptor = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno()
    sys.stderr = LossyStream(descriptor)
    atexit.register(drain_stderr)


def drain_stderr() -> None:
    """Wait until all lines so far are written; atexit calls it, os._exit does not."""
    if isinstance(sys.stderr, LossyStream):
        sys.stderr.drain(DRAIN_TIMEOUT_S)


def lines_lost() -> int:
    """Return the number of lost lines of this process's stderr; 0 without protect_stderr."""
    return sys.stderr.lines_lost if isinstance(sys.stderr, LossyStream) else 0
