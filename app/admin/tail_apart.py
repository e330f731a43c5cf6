"""The events that were rejected or conflicted last, for operators who look later."""

from collections import OrderedDict
from typing import NamedTuple

from app.admin.tail_sample import Sample

EVENTS_MAX, BYTES_MAX = 100, 512 * 1024
"""The older ones are in quarantine, too, like these: `gateway quarantine list` has them all."""


class Kept(NamedTuple):
    """One event that was kept apart."""

    sample: Sample  # as it came last
    times: int
    first_ms: int


class Apart:
    """Filled in the ingest's loop, and read there. An event that is sent again is counted, not kept twice."""

    def __init__(self) -> None:
        """Begin empty."""
        self._kept: OrderedDict[tuple[bytes, str | None], Kept] = OrderedDict()
        self._bytes = 0

    def note(self, sample: Sample) -> None:
        """Keep a sample as the newest one, and forget the oldest if that is too many."""
        key = (sample.key, sample.code)
        before = self._kept.pop(key, None)
        if before is not None:
            self._bytes -= before.sample.size_bytes
        times, first_ms = (before.times, before.first_ms) if before else (0, sample.at_ms)
        self._kept[key] = Kept(sample, times + 1, first_ms)
        self._bytes += sample.size_bytes
        while len(self._kept) > EVENTS_MAX or self._bytes > BYTES_MAX:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.sample.size_bytes

    def newest_first(self) -> list[Kept]:
        """Return what is kept."""
        return list(reversed(self._kept.values()))
