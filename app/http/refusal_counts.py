"""
Counts of refused requests: by code, and by who sent them.

Sources and libraries are labels of metrics, so their number is bounded: once a bound is reached, what is new
counts under `other`.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from app.http.sdk_library import OTHER

SOURCES_MAX = 200
"""The limit of sources with counts of their own: key files have fewer, open keys of development may not."""

SENDERS_MAX = 2_000
"""The limit of distinct senders by library: ten codes and libraries of each source."""


class Sender(NamedTuple):
    """What is refused, and whom."""

    code: str
    status: int
    """Of the code's answer; a pixel is answered with 200 all the same."""
    source: str
    """"" if the request was refused before its source was known."""
    library: str


@dataclass(slots=True)
class BoundedSources:
    """The labels of sources, the same for as long as the process lives: counters must not fall."""

    _known: set[str] = field(default_factory=set)

    def label_of(self, source: str) -> str:
        """Return the source, or `other` once there are SOURCES_MAX."""
        if source not in self._known:
            if len(self._known) >= SOURCES_MAX:
                return OTHER
            self._known.add(source)
        return source


class RefusalCounts:
    """Filled in the ingest's loop."""

    def __init__(self) -> None:
        self.by_code: Counter[str] = Counter()
        self.by_sender: Counter[Sender] = Counter()
        self.before_events = 0
        """Requests that were refused before their events were known, so that no other counter has them."""
        self._sources = BoundedSources()

    def note(
        self, code: str, status: int, source: str | None, library: str, *, is_before_events: bool
    ) -> None:
        """Count a request."""
        self.by_code[code] += 1
        self.before_events += is_before_events
        sender = Sender(code, int(status), self._sources.label_of(source) if source else "", library)
        if sender not in self.by_sender and len(self.by_sender) >= SENDERS_MAX:
            sender = sender._replace(library=OTHER)
            if sender not in self.by_sender and len(self.by_sender) >= 2 * SENDERS_MAX:
                sender = sender._replace(source=sender.source and OTHER)
        self.by_sender[sender] += 1
