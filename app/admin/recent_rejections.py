"""The events that were rejected or conflicted last, for operators who look later."""

from collections import OrderedDict
from typing import NamedTuple

from app.admin.tail_sample import Sample

EVENTS_MAX, BYTES_MAX = 100, 512 * 1024
"""All of them, older ones too, are in quarantine: `gateway quarantine list`."""


class Rejection(NamedTuple):
    """One event, which may have come several times."""

    sample: Sample  # as it came last
    times: int
    first_ms: int


class RecentRejections:
    """Filled and read in the ingest's loop. An event that is sent again is counted, not kept twice."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[bytes, str | None], Rejection] = OrderedDict()
        self._bytes = 0

    def note(self, sample: Sample) -> None:
        """Keep a sample as the newest one, and drop the oldest beyond the limits."""
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
        """Return what is kept."""
        return list(reversed(self._by_key.values()))
