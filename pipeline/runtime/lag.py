"""
How far a stream is behind its source, asked beside it: also before its first batch, and while one hangs.
"""

import math
import queue
import threading
import time

from pipeline.errors import PipelineError
from pipeline.sources.extent import OffsetRanges, positions_of
from pipeline.sources.records import Offsets, Source

CHECK_INTERVAL_S = 10.0


class LagMonitor:
    """Asks a source for its ends in a thread; an archive has none."""

    def __init__(self, source: Source, *, interval_s: float = CHECK_INTERVAL_S) -> None:
        """Ask a source, again and again after this time."""
        self._source, self._interval_s = source, interval_s
        self._results: queue.SimpleQueue[OffsetRanges] = queue.SimpleQueue()
        self._next_s = -math.inf

    def poll(self, read_to: Offsets) -> Offsets | None:
        """
        Return the offsets still to read of each partition, if the source has answered since the last call.

        Args:
            read_to: by partition, the first offset that was not read; one that is left out is unread.
        """
        if time.monotonic() >= self._next_s:
            self._next_s = math.inf  # until it has answered
            threading.Thread(target=self._ask, daemon=True).start()
        try:
            ranges = self._results.get_nowait()
        except queue.Empty:
            return None
        self._next_s = time.monotonic() + self._interval_s
        return {p: max(0, end - max(start, read_to.get(p, start))) for p, (start, end) in ranges.items()}

    def _ask(self) -> None:
        try:
            positions = positions_of(self._source) or {}
        except PipelineError:
            positions = {}  # the stall monitor tells it
        self._results.put({p: (at.start_offset, at.last_stable_offset) for p, at in positions.items()})
