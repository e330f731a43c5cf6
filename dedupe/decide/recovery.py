"""
Recovery: the decisions on an index before its lane serves, from the log alone. Pure.

A lane proves that its index follows this log, or rebuilds it, and checks every record that it reads
against its identity secret and partition count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.record import FLAG_ID_ASSIGNED, RecordIdentity, is_identified_by, parse_identity
from dedupe.model.types import EventKey, LogRecord, Offset
from dedupe.storage.index import IndexState


class CheckedRecord(NamedTuple):
    """A committed record that has passed its check."""

    offset: Offset
    timestamp_ms: int
    identity: RecordIdentity
    secondary_key: EventKey | None = None  # see Event


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """Checks committed records of one partition against what this process would have written."""

    identity: Identity
    partition: int
    partitions: int

    def checked(self, record: LogRecord) -> CheckedRecord:
        """
        Return the record's identity.

        Raises:
            LogCorruptError: it is not a record of ours.
            IdentityMismatchError: its key or partition comes from another secret or partition count.
        """
        found = parse_identity(record)
        if not is_identified_by(
            record, found, self.identity, partition=self.partition, partitions=self.partitions
        ):
            raise IdentityMismatchError(
                f"partition {self.partition}, offset {record.offset}: this record was written with another "
                "GATEWAY_IDENTITY_SECRET or another number of partitions; serving now would let duplicates in"
            )
        if found.session is None:
            return CheckedRecord(record.offset, record.timestamp_ms, found)
        return CheckedRecord(record.offset, record.timestamp_ms, found, self._secondary_key_of(found))

    def _secondary_key_of(self, found: RecordIdentity) -> EventKey | None:
        """Return the second key of a session's event; one that had no id of its own has none."""
        if found.session is None or found.flags & FLAG_ID_ASSIGNED:
            return None
        return self.identity.secondary_key(found.source, found.session.client_hash, found.message_id)


def reason_to_rebuild(
    state: IndexState, last: CheckedRecord | None, *, log_start: Offset, end: Offset
) -> str | None:
    """
    Return why an index of this state does not follow this log, or None if nothing speaks against it.

    Args:
        state: of an index with at least one record.
        last: the log's first record at or after the index's last one.
        log_start: the log's first offset.
        end: restore_end_offset.
    """
    if state.applied_offset > end:
        return "it is ahead of the log, which must have lost its tail"
    if state.last_offset < log_start:
        return "the log no longer holds the last record it knows"
    known = (state.last_offset, state.last_key, state.newest_timestamp_ms)  # a lane's times never run back
    if last is None or (last.offset, last.identity.key, last.timestamp_ms) != known:
        return "the log does not hold the last record it knows"
    return None


def sequence_gaps(state: IndexState, records: Sequence[CheckedRecord]) -> int:
    """Return at how many of the next records, n >= 1, the lane's sequence does not continue by one."""
    sequence = [record.identity.lane_seq for record in records]
    expected = state.next_lane_seq if state.last_offset >= 0 else sequence[0]
    if sequence == list(range(expected, expected + len(sequence))):
        return 0
    return sum(after != before + 1 for before, after in pairwise([expected - 1, *sequence]))
