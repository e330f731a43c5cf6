"""
Ages: how old duplicates are when they come, which says how long ids have to be remembered.

The index knows places, not times. Where records of the last hour are, a few marks say to the second; of older
ones the window's own steps do, to the hour. Both are rounded to the older side.
"""

from bisect import bisect_right
from collections.abc import Sequence

from dedupe.admission import DUPLICATE, Admission
from dedupe.metrics import Histogram
from dedupe.types import Offset
from dedupe.window import Window

MARK_MS = 1_000
MARKS_MAX = 3_600
LOOKED_AT_MAX = 2
"""Of one batch: 1.5 us. Of more, every n-th stands for n; what comes together is mostly of one age."""


class Ages:
    """Of one lane's duplicates."""

    def __init__(self, histogram: Histogram) -> None:
        """Take where they are counted."""
        self._histogram = histogram
        self._offsets: list[Offset] = []  # of commits about a second apart
        self._times_ms: list[int] = []

    def note_commit(self, base: Offset, timestamp_ms: int) -> None:
        """Remember where the log was when."""
        if not self._times_ms or timestamp_ms - self._times_ms[-1] >= MARK_MS:
            self._offsets.append(base)
            self._times_ms.append(timestamp_ms)
            if len(self._offsets) > 2 * MARKS_MAX:
                del self._offsets[:MARKS_MAX], self._times_ms[:MARKS_MAX]

    def forget(self) -> None:
        """The offsets may mean other records from now on."""
        self._offsets.clear()
        self._times_ms.clear()

    def note(
        self, admissions: Sequence[Admission], originals: Sequence[Offset], window: Window, now_ms: int
    ) -> None:
        """Count how old a batch's duplicates are; `originals` says where their originals are."""
        count = admissions.count(DUPLICATE)
        if not count:
            return
        if count < len(admissions):
            originals = [
                place for place, kind in zip(originals, admissions, strict=True) if kind is DUPLICATE
            ]
        every = -(-count // LOOKED_AT_MAX)
        for first in range(0, count, every):
            arrived_ms = self._time_of(originals[first], window)
            if arrived_ms is not None:
                self._histogram.observe(max(0, now_ms - arrived_ms) / 1000, min(every, count - first))

    def _time_of(self, offset: Offset, window: Window) -> int | None:
        place = bisect_right(self._offsets, offset) - 1
        return self._times_ms[place] if place >= 0 else window.time_of(offset)
