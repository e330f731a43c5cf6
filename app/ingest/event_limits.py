"""Bounds of the events of one request."""

from dataclasses import dataclass

RETRY_BYTES_FREE = 1024
"""
How many bytes of the fields that retries change (`sentAt`, `_metadata`) count for no limit, as what the
gateway adds does not: each try of an event gets the same verdict, from every address.
app.settings.limits.RECORD_MARGIN_BYTES has room for it.
"""

STEP_BYTES = 192 * 1024
"""Of work before other requests get their turn: 2 ms of identifying."""

EVENT_WORK_BYTES = 1024
"""What an event counts as work besides the bytes of its value."""


EVENT_DEPTH_MAX = 32
"""Of an event: SDKs nest a few levels deep, and readers such as Spark recurse into each."""


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Bounds of an event and of one request's events."""

    event_bytes_max: int
    event_depth_max: int
    request_bytes_max: int
    growth_bytes_max: int = 5 * 1024 * 1024  # added by batch-level fields: 500 events with 10 KB each pass
