"""The events that were rejected or conflicted last, for operators who look later."""

from collections import OrderedDict
from typing import NamedTuple

from app.admin.tail_sample import Sample
from dedupe.errors import RetriableError
from dedupe.identity import FINGERPRINT_BYTES, Identity
from dedupe.quarantine_reader import Place
from dedupe.router import Router
from dedupe.routing import partition_of

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


class PlacesApart:
    """Knows where events that were kept apart are in quarantine; used in the ingest's loop."""

    def __init__(self, router: Router, identity: Identity) -> None:
        """Take the lanes, and what makes their keys."""
        self._router = router
        self._identity = identity

    async def place_of(self, sample: Sample) -> Place | None:
        """Return the place, None if nobody knows it now."""
        key = sample.key[:-FINGERPRINT_BYTES]
        if not sample.is_wrapped:  # it came to its own lane, and has another key in quarantine
            key = self._identity.quarantine_key(
                sample.source or "", sample.message_id or "", sample.key[-FINGERPRINT_BYTES:]
            )
        routes = self._router.quarantine_routes
        partition = partition_of(key, len(routes))
        try:
            entry = await routes[partition].find(key)
        except RetriableError:
            return None
        return None if entry is None else Place(partition, entry.offset)
