"""The newest rejected and conflicting events."""

from collections import OrderedDict
from typing import NamedTuple

from app.admin.tail_sample import Sample

EVENTS_MAX, BYTES_MAX = 100, 512 * 1024
"""The quarantine has all of them: `gateway quarantine list`."""


class Rejection(NamedTuple):
    """One event, which may have arrived several times."""

    sample: Sample  # of the last arrival
    times: int
    first_ms: int


class RecentRejections:
    """Filled and read in the ingest's loop. Copies of an event are counted, not stored."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[bytes, str | None], Rejection] = OrderedDict()
        self._bytes = 0

    def note(self, sample: Sample) -> None:
        """Store a sample as the newest one, and drop the oldest beyond the limits."""
        key = (sample.key, sample.code)
        before = self._by_key.pop(key, None)
        if before is not None:
            self._bytes -= before.sample.size_bytes
        times, first_ms = (before.times, before.first_ms) if before else (0, sample.at_ms)
        self._by_key[key] = Rejection(sample, times + 1, first_ms)
        self._bytes += sample.size_bytes
        while len(self._by_key) > EVENTS_MAX or self._bytes > BYTES_MAX:
            _, oldest = self._by_key.popitem(last=False)
            self._bytes -= oldest.sample.size_bytes

    def newest_first(self) -> list[Rejection]:
        """Return the rejections, newest first."""
        return list(reversed(self._by_key.values()))
