"""
Recovery: the decisions on an index before its lane serves. Pure.

A lane checks that its index follows this log, or rebuilds it. It checks every record that it reads against
its identity secret and partition count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, overload

from dedupe.decide.layout import Layout
from dedupe.decide.lineage import Lineage
from dedupe.decide.resharding import Routing
from dedupe.decide.sessions import NO_SOURCE
from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.inherited import place_of
from dedupe.model.record import (
    FLAG_ID_ASSIGNED,
    RecordIdentity,
    is_identified_by,
    parse_identity,
    routing_key_of,
)
from dedupe.model.types import EventKey, LogRecord, Offset
from dedupe.storage.index import IndexState

if TYPE_CHECKING:
    from gateway_native import Records


class CheckedRecord(NamedTuple):
    """A committed record that has passed RecordCheck."""

    offset: Offset
    timestamp_ms: int
    identity: RecordIdentity
    secondary_key: EventKey | None = None  # see Event
    source_hash: bytes = NO_SOURCE  # with a session


class PlainRecords(Sequence[LogRecord]):
    """Committed records of plain events that the native module has read, built when they are needed."""

    def __init__(self, native: "Records", start: Offset = 0) -> None:
        """Take what the native module has read; all offsets count from `start` on."""
        self.native = native
        self.start = start
        self.end: Offset = native.end + start
        """Behind the last record; `start` without any."""
        self._built: list[LogRecord] = []

    def moved(self, start: Offset) -> "PlainRecords":
        """Return the records with offsets that count from elsewhere."""
        return PlainRecords(self.native, start)

    def __len__(self) -> int:
        return len(self.native)

    @overload
    def __getitem__(self, place: int) -> LogRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[LogRecord]: ...
    def __getitem__(self, place: int | slice) -> LogRecord | list[LogRecord]:
        """Return one record, or some."""
        return self._records()[place]

    def __iter__(self) -> Iterator[LogRecord]:
        """Return the records in order."""
        return iter(self._records())

    def _records(self) -> list[LogRecord]:
        if not self._built:
            records, start = self.native.log_records(), self.start
            self._built = [r._replace(offset=r.offset + start) for r in records] if start else records
        return self._built


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """Checks that the keys and the partition of records match this process's settings."""

    identity: Identity
    partition: int
    partitions: int  # that the topic began with
    layout: Layout | None = None  # how it was divided since

    def checked(self, record: LogRecord) -> CheckedRecord:
        """
        Return the record's identity.

        Raises:
            LogCorruptError: no gateway wrote the record.
            IdentityMismatchError: its key or partition comes from another secret or partition count.
        """
        identity = parse_identity(record)
        is_own = is_identified_by(
            record, identity, self.identity, partition=self._root, partitions=self.partitions
        )
        if not (is_own and self._is_home(record.offset, record.timestamp_ms, identity)):
            raise IdentityMismatchError(
                f"partition {self.partition}, offset {record.offset}: this record was written with another "
                "GATEWAY_IDENTITY_SECRET or another number of partitions; serving now would let duplicates in"
            )
        if identity.session is None:
            return CheckedRecord(record.offset, record.timestamp_ms, identity)
        secondary_key = self._secondary_key_of(identity)
        source_hash = self.identity.source_hash(identity.source)
        return CheckedRecord(record.offset, record.timestamp_ms, identity, secondary_key, source_hash)

    def checked_plain(self, records: PlainRecords) -> list[CheckedRecord] | None:
        """Return what `checked` does of each; None if it would raise for one, or has to look closer."""
        start = records.start
        checked = records.native.checked(self.identity.secret, self._root, self.partitions)
        if checked is None or (self._routing is None and not start):
            return checked
        checked = [each._replace(offset=each.offset + start) for each in checked] if start else checked
        are_home = all(self._is_home(each.offset, each.timestamp_ms, each.identity) for each in checked)
        return checked if are_home else None

    @property
    def _routing(self) -> Routing | None:
        return None if self.layout is None else self.layout.routing

    @property
    def _root(self) -> int:
        """The partition of the beginning that had all slots of this one, see spread_over."""
        return self.partition if self._routing is None else self.partition % self.partitions

    def _is_home(self, offset: Offset, timestamp_ms: int, identity: RecordIdentity) -> bool:
        """Whether the slot of a record was at home where it lies."""
        routing = self._routing
        return routing is None or routing.is_home(
            routing_key_of(identity), *place_of(self.partition, offset), timestamp_ms
        )

    def _secondary_key_of(self, record: RecordIdentity) -> EventKey | None:
        """Return the secondary key of a session's event; None if it had no message id of its own."""
        if record.session is None or record.flags & FLAG_ID_ASSIGNED:
            return None
        return self.identity.secondary_key(record.source, record.session.client_hash, record.message_id)


def reason_to_rebuild(
    state: IndexState, last: CheckedRecord | None, *, log_start: Offset, end: Offset
) -> str | None:
    """
    Return why an index in this state does not follow this log, or None.

    Args:
        state: the state of an index with at least one record.
        last: the log's first record at or after the index's last one.
        log_start: the log's first offset.
        end: restore_end_offset.
    """
    if state.applied_offset > end:
        return "it is ahead of the log, which has lost its tail"
    if state.last_offset < log_start:
        return "the log has deleted the index's last record"
    if last is None:
        return f"the log lacks the index's last record, of offset {state.last_offset}"
    facts = {  # timestamps never decrease
        "offset": (last.offset, state.last_offset),
        "key": (last.identity.key.hex(), state.last_key.hex()),
        "timestamp": (last.timestamp_ms, state.newest_timestamp_ms),
    }
    differ = [f"{fact} is {found}, not {known}" for fact, (found, known) in facts.items() if found != known]
    return f"the log lacks the index's last record: its {', its '.join(differ)}" if differ else None


def sequence_gaps(state: IndexState, records: Sequence[CheckedRecord], lineage: Lineage | None = None) -> int:
    """
    Return the number of gaps before the next n >= 1 records in the lane sequence.

    Records that are inherited have gaps, where other partitions have records of other slots.
    """
    sequence = [record.identity.lane_seq for record in records]
    expected = state.next_lane_seq if state.last_offset >= 0 else sequence[0]
    if lineage is not None:
        if records[-1].offset < lineage.own_start:
            return 0
        if state.last_offset < lineage.own_start:
            expected = lineage.lane_seq if state.last_offset >= 0 else sequence[0]
    if sequence == list(range(expected, expected + len(sequence))):
        return 0
    return sum(after != before + 1 for before, after in pairwise([expected - 1, *sequence]))
