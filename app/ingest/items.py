"""Items of a body that are not parsed: quarantined as they are, or parsed when they are identified."""

from typing import NamedTuple

from app.http.fair_scheduler import YieldToOthers
from app.ingest.event_limits import STEP_BYTES

EVENT_FIELDS = frozenset({"type", "event", "messageId"})
"""An object with one of these is an event, where it could be something else."""

FREE_RATE = 2
"""How many times faster an item is freed than parsed, at least."""


class Fragment(NamedTuple):
    """A part of a body that cannot be stored as an event, and is quarantined as it is."""

    position: int
    """The offset of its first byte in the inflated body."""
    content: bytes
    reason: str
    """A RejectionCode."""
    write_key: str = ""
    """That of an event which is not parsed."""


class Oversize(NamedTuple):
    """An item that is too large as sent, and is not checked further."""

    message_id: object
    content: bytes  # as sent, without the write key
    write_key: str = ""


class Packed(NamedTuple):
    """An object or array that was parsed once, and is parsed again when it is identified, to save memory."""

    content: bytes
    write_key: str
    is_event: bool


async def free(items: list[object], body_bytes: int, yield_to_others: YieldToOthers) -> None:
    """Free the items of a body, step by step: they may be a million objects."""
    await yield_to_others(body_bytes // FREE_RATE)
    work_bytes, share = 0, body_bytes // max(1, len(items)) // FREE_RATE
    while items:
        items.pop()
        work_bytes += share
        if work_bytes > STEP_BYTES:
            await yield_to_others(work_bytes)
            work_bytes = 0
