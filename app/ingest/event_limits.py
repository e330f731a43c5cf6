"""Bounds of the events of one request."""

from dataclasses import dataclass

RETRY_BYTES_FREE = 1024
"""
Of what retries change (`sentAt`, `_metadata`), this much counts for no limit, as what the gateway adds
does not: the same event is taken or refused alike at each try, and wherever it comes from.
app.config.limit_settings.RECORD_MARGIN_BYTES has room for it.
"""

STEP_BYTES = 192 * 1024
"""Of values built before others have a turn, about: with STEP_EVENTS, 2 ms."""

STEP_EVENTS = 128

STEP_FIELDS = 64 * STEP_EVENTS
"""
Of events looked at together, where a usual one has a dozen: names are looked through before it is known
how many events the step has room for. With more of them, each event is looked at when it is its turn.
"""


EVENT_DEPTH_MAX = 32
"""Of an event: SDKs nest a few levels deep, and readers such as Spark recurse into each."""


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Bounds of an event and of one request's events."""

    event_bytes_max: int
    event_depth_max: int
    request_bytes_max: int
    growth_bytes_max: int = 5 * 1024 * 1024  # added by batch-level fields: 500 events with 10 KB each pass
