"""
The last decided events of this worker, with their content, in memory: for the console's events.

In development they are held from the start. Elsewhere a worker begins when somebody looks at them, and lets
them go with the first request LINGER_MS after the last look. Requests are noted and read in the ingest's
loop, as they are: an event costs it next to nothing, and is made a sample only when it is looked at.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from app.admin.tail_sample import Sample
from dedupe.model.types import Event, size_of
from dedupe.submission import Outcomes

EVENTS_MAX, BYTES_MAX = 10_000, 32 * 1024 * 1024
LINGER_MS = 10 * 60 * 1000
REQUEST_BYTES = 1_000
"""The approximate size of a request without its events."""


class Sender(NamedTuple):
    """Whose request it was."""

    source: str | None
    client: str | None
    request_id: str


class Decided(NamedTuple):
    """A request: its n events with their n outcomes, or the code of its refusal, and its rejected events."""

    at_ms: int
    sender: Sender
    events: Sequence[Event]
    outcomes: Outcomes | None
    rejected: Sequence[Event]
    refusal: str | None = None

    @property
    def event_count(self) -> int:
        """How many events it has; a refused one without known events counts as one."""
        return len(self.events) + len(self.rejected) or 1


class Held(NamedTuple):
    """An event with its number, which counts from 1 since the worker began to hold events."""

    number: int
    sample: Sample


class RecentEvents:
    """The requests with the last EVENTS_MAX events, of at most BYTES_MAX together; the oldest go first."""

    def __init__(self, *, is_always_on: bool = False) -> None:
        self.is_on = is_always_on
        self.held_bytes = 0
        self._is_always_on = is_always_on
        self._until_ms = 0
        self._events = 0
        self._next_number = 1
        self._requests: deque[tuple[int, int, Decided]] = (
            deque()
        )  # with the number of its first event, and its size

    def look(self, now_ms: int) -> list[tuple[int, Decided]]:
        """Return requests with the number of the first event of each, oldest first; hold what comes now."""
        self.is_on = True
        self._until_ms = now_ms + LINGER_MS
        return [(number, request) for number, _, request in self._requests]

    def is_due(self, now_ms: int) -> bool:
        """Whether a request is to be noted; ends the holding LINGER_MS after the last look."""
        if not self._is_always_on and now_ms > self._until_ms:
            self.is_on = False
            self._requests.clear()
            self._events = self.held_bytes = 0
        return self.is_on

    def note(self, request: Decided) -> None:
        """Hold a request as the newest one."""
        size = REQUEST_BYTES + size_of(request.events) + size_of(request.rejected)
        self._requests.append((self._next_number, size, request))
        self._next_number += request.event_count
        self._events += request.event_count
        self.held_bytes += size
        while self._requests and (
            self._events - self._requests[0][2].event_count >= EVENTS_MAX or self.held_bytes > BYTES_MAX
        ):
            _, dropped, oldest = self._requests.popleft()
            self._events -= oldest.event_count
            self.held_bytes -= dropped
