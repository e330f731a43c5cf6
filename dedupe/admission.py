"""
Admission: decides, for one batch of one partition, which events are new.

Pure: no clock, no I/O, no asyncio. The same calls in the same order give the same verdicts, so a
replay of the log rebuilds the same state.

Lane.submit -> **admit** -> PartitionLog.append -> DedupeIndex.apply
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from dedupe.types import Entry, Event, EventKey, Fingerprint, Offset


class Admission(Enum):
    """What the lane owes the caller for one event."""

    NEW = "new"  # append it in this transaction
    REPEAT = "repeat"  # an earlier event of this batch is the original
    DUPLICATE = "duplicate"  # the index knows the original
    CONFLICT = "conflict"  # known id, other content: keep the original, quarantine this one


class Verdict(NamedTuple):
    """The decision on one event."""

    admission: Admission
    place: int
    """NEW: how many new events of the batch precede it. REPEAT, or a CONFLICT with a new event of
    the same batch: the same number for the original. DUPLICATE or CONFLICT: the original's offset."""
    in_batch: bool
    """Whether `place` counts new events of this batch (else it is an offset)."""


def admit(events: Sequence[Event], known: Sequence[Entry | None], *, window_start: Offset) -> list[Verdict]:
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
    verdicts: list[Verdict] = []
    for event, entry in zip(events, known, strict=True):
        if entry is not None and entry.offset >= window_start:
            is_copy = (
                entry.fingerprint == event.fingerprint or entry.fingerprint in event.earlier_fingerprints
            )
            verdicts.append(
                Verdict(Admission.DUPLICATE if is_copy else Admission.CONFLICT, entry.offset, False)
            )
        elif (original := new.get(event.key)) is not None:
            place, fingerprint = original
            is_copy = fingerprint == event.fingerprint
            verdicts.append(Verdict(Admission.REPEAT if is_copy else Admission.CONFLICT, place, True))
        else:
            place = len(new)
            new[event.key] = (place, event.fingerprint)
            verdicts.append(_new_at(place))
    return verdicts


@lru_cache(None)  # as many as a batch may have events
def _new_at(place: int) -> Verdict:
    """Return the verdict that nearly all events get, made once: making it costs more than deciding it."""
    return Verdict(Admission.NEW, place, True)
