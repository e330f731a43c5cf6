"""
Proof: whether the log has the original of a duplicate where the index says. Pure.

A duplicate verdict rests on the index alone. If the index has an entry that the log does not have, an event
that was never stored is answered as stored.
"""

from typing import NamedTuple

from dedupe.decide.recovery import RecordCheck
from dedupe.model.errors import IdentityMismatchError, LogCorruptError
from dedupe.model.types import Event, EventKey, Fingerprint, LogRecord, Offset


class Sample(NamedTuple):
    """A duplicate verdict, and what the record of its original must have."""

    offset: Offset
    key: EventKey
    secondary_key: EventKey | None
    fingerprints: tuple[Fingerprint, ...]


def sample_of(event: Event, offset: Offset) -> Sample:
    """Return the verdict that an event is a duplicate of the record at an offset."""
    return Sample(offset, event.key, event.secondary_key, (event.fingerprint, *event.earlier_fingerprints))


def why_disproved(sample: Sample, record: LogRecord | None, check: RecordCheck) -> str | None:
    """
    Return why a record is not the original of a duplicate, None if it is.

    Args:
        sample: the verdict.
        record: what the log has at its offset, which lies within the log's bounds; None if nothing.
        check: of this log's records.
    """
    if record is None:
        return "the log has no record there"
    try:
        original = check.checked(record)
    except (LogCorruptError, IdentityMismatchError) as err:
        return str(err)
    is_same = original.identity.key == sample.key
    if not is_same and (sample.secondary_key is None or original.secondary_key != sample.secondary_key):
        return "the log has another event there"
    if original.identity.fingerprint not in sample.fingerprints:
        return "the log has other content there"
    return None
