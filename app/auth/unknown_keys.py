"""
Who sends write keys that are unknown, for operators alone: an answer never says how a key is wrong.

Most are keys that were removed while apps still use them. Memory is bounded: of more senders than
SENDERS_MAX, the one with the fewest requests is replaced, and its count is passed on, so a sender with many
requests is always among those that are reported (the space-saving algorithm).
"""

from dataclasses import dataclass
from typing import NamedTuple

import structlog

from dedupe.model.clock import Clock

SENDERS_MAX = 256
SENDERS_TOLD = 20
"""The senders with the most requests, in reports."""

KEY_CHARS = 4
"""The part of a key that is shown: its first characters, but never more than half of it."""

REPORT_INTERVAL_S = 60.0
"""The interval of log lines."""

logger = structlog.get_logger(__name__)


class Sender(NamedTuple):
    """Requests with one beginning of a key, from one address group and one library."""

    address: str
    key: str
    library: str


@dataclass(slots=True)
class Count:
    """The requests of one sender."""

    requests: int
    first_ms: int
    last_ms: int


class UnknownKeys:
    """Counts requests with unknown keys; used in the ingest's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[Sender, Count] = {}
        self.requests = 0
        """The number of all such requests."""
        self._reported_at = clock.monotonic() - REPORT_INTERVAL_S
        self._reported = 0

    def note(self, write_key: str, address: str, library: str) -> None:
        """Count a request, and log it unless a line was written a short time ago."""
        self.requests += 1
        sender, now_ms = Sender(address, shown_part(write_key), library), self._clock.now_ms()
        count = self._counts.get(sender)
        if count is None:
            count = self._counts[sender] = Count(self._replaced(), now_ms, now_ms)
        count.requests += 1
        count.last_ms = now_ms
        now_s = self._clock.monotonic()
        if now_s - self._reported_at >= REPORT_INTERVAL_S:
            logger.warning(
                "an unknown write key is sent",
                address=address,
                key_begins_with=sender.key,
                library=library,
                requests=self.requests - self._reported,
            )
            self._reported_at, self._reported = now_s, self.requests

    def top(self) -> list[tuple[Sender, Count]]:
        """Return the senders with the most requests."""
        ranked = sorted(self._counts.items(), key=lambda item: item[1].requests, reverse=True)
        return ranked[:SENDERS_TOLD]

    def _replaced(self) -> int:
        """Make room for a sender; return the count that it takes over."""
        if len(self._counts) < SENDERS_MAX:
            return 0
        least = min(self._counts, key=lambda sender: self._counts[sender].requests)
        return self._counts.pop(least).requests


def shown_part(write_key: str) -> str:
    """Return the beginning of a key, without control characters."""
    part = write_key[: min(KEY_CHARS, len(write_key) // 2)]
    return "".join([char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in part])
