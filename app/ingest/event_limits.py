"""Bounds of the events of one request."""

from collections.abc import Sequence
from dataclasses import dataclass

from dedupe.model.types import Event

RETRY_BYTES_FREE = 1024
"""
The bytes of fields that retries change (`sentAt`, `_metadata`) that no limit counts, so that each retry has
the same verdict. app.settings.limits.RECORD_MARGIN_BYTES includes them.
"""

STEP_BYTES = 192 * 1024
"""The work of one step of identifying, 2 ms, after which other requests run."""

EVENT_WORK_BYTES = 1024
"""The work of an event besides the bytes of its value."""


EVENT_DEPTH_MAX = 32
"""The limit of an event's depth: SDKs nest a few levels, and readers such as Spark recurse into each."""


QUARANTINED_BYTES_MIN = 512
"""The least that a quarantined event is charged: its record has a key, headers and a place in the index."""


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Bounds of an event and of one request's events."""

    event_bytes_max: int
    event_depth_max: int
    request_bytes_max: int
    growth_bytes_max: int = 5 * 1024 * 1024  # of batch-level fields: 500 events with 10 KB each


def quarantined_bytes(events: Sequence[Event]) -> int:
    """Return what events are charged in the quota of quarantine."""
    return sum([max(QUARANTINED_BYTES_MIN, len(event.value)) for event in events])
