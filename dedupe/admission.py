"""
Admission: decides, for one batch of one partition, which events are new.

Pure: no clock, no I/O, no asyncio. The same calls in the same order give the same verdicts, so a
replay of the log rebuilds the same state.

Lane.submit -> **admit** -> PartitionLog.append -> DedupeIndex.apply
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from dedupe.types import Entry, Event, EventKey, Fingerprint, Offset


class Admission(Enum):
    """What the lane owes the caller for one event."""

    NEW = "new"  # append it in this transaction
    REPEAT = "repeat"  # an earlier event of this batch is the original
    DUPLICATE = "duplicate"  # the index knows the original
    CONFLICT = "conflict"  # known id, other content: keep the original, quarantine this one


class Verdicts(NamedTuple):
    """The decisions on one batch, event by event in arrival order."""

    admissions: list[Admission]
    originals: list[int]
    """Where the original is: its offset, or ~n if it is new in this batch and follows n other new events."""

    def offsets(self, base: Offset) -> list[Offset]:
        """Return each original's offset, once the first new event of the batch is at `base`."""
        return [base + ~original if original < 0 else original for original in self.originals]


def admit(events: Sequence[Event], known: Sequence[Entry | None], *, window_start: Offset) -> Verdicts:
    """
    Classify one batch in arrival order.

    Args:
        events: n >= 0, copies allowed.
        known: the index's entry for each event, or None; same order and length.
        window_start: entries at offsets below it are forgotten, even if still on disk.

    Returns:
        n verdicts, same order. Among equal keys only the first can be NEW.
    """
    assert len(events) == len(known)
    new: dict[EventKey, tuple[int, Fingerprint]] = {}
    admissions: list[Admission] = []
    originals: list[int] = []
    for event, entry in zip(events, known, strict=True):
        if entry is not None and entry.offset >= window_start:
            is_copy = (
                entry.fingerprint == event.fingerprint or entry.fingerprint in event.earlier_fingerprints
            )
            admission, original = Admission.DUPLICATE if is_copy else Admission.CONFLICT, entry.offset
        elif (first := new.get(event.key)) is not None:
            original, fingerprint = first
            admission = Admission.REPEAT if fingerprint == event.fingerprint else Admission.CONFLICT
        else:
            admission, original = Admission.NEW, ~len(new)
            new[event.key] = (original, event.fingerprint)
        admissions.append(admission)
        originals.append(original)
    return Verdicts(admissions, originals)
