"""
Verifier: compares the index of one lane with its log, and changes neither.

It reads every record of the window from the log and looks its keys up, at a limited rate, while the lane
serves. It does not detect keys that only the index has; records that the log has lost leave gaps in the lane
sequence.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from dedupe.decide.lineage import Lineage, distance
from dedupe.decide.recovery import CheckedRecord
from dedupe.model.errors import IndexCorruptError, IndexUnavailableError
from dedupe.model.types import Entry, EventKey, Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.metrics import LaneMetrics
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.record_reader import RecordReader
from dedupe.storage.log import PartitionLog

LOOKED_UP_MAX = 250
"""Records of one look-up, which blocks the event loop for about 2 ms."""

MISSING = "missing"
"""The log has the record, the index does not: a copy of its event would be accepted."""

ELSEWHERE = "elsewhere"
"""The index has another offset: the answer to a retry would have a wrong one."""

CONTENT = "content"
"""The index has another fingerprint: a retry would be a conflict."""

GAP = "gap"
"""The lane sequence has a gap: records are lost, or another program writes to the log."""


class Difference(NamedTuple):
    """One record on which index and log differ."""

    kind: str
    offset: Offset  # of the record, or of the first one after a gap
    key: EventKey  # empty for a gap
    source: str
    message_id: str
    index_offset: Offset | None  # in the index


@dataclass(slots=True)
class Verified:
    """The progress of a comparison."""

    start: Offset
    end: Offset  # exclusive
    offset: Offset  # all records below it are compared
    records: int = 0
    differences: int = 0
    lineage: Lineage | None = None

    def position_of(self, offset: Offset) -> int:
        """Return an offset, or how many offsets of all its logs a lane with ancestors has before it."""
        return offset if self.lineage is None else distance(self.lineage, self.start, offset)

    @property
    def ratio(self) -> float:
        """The part of the offsets that is compared, 0 to 1."""
        size = distance(self.lineage, self.start, self.end)
        return distance(self.lineage, self.start, self.offset) / size if size > 0 else 1.0


class Verifier:
    """One comparison; used in the lane's event loop."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, index: PartitionIndex
    ) -> None:
        """Compare an open index with a log."""
        self._reader = RecordReader(partition, partition_log, context, LaneMetrics())
        self._clock = context.clock
        self._index = index
        self._lineage = context.lineage_of(partition)
        self._next_seq: int | None = None
        self._last_seq = index.index.state.next_lane_seq - 1
        end = index.index.state.applied_offset
        start = min(index.known_from, end)
        self.verified = Verified(start, end, start, lineage=self._lineage)

    async def run(self, *, records_per_s: float) -> AsyncGenerator[list[Difference], None]:
        """
        Compare, and yield the differences of some records, n >= 0, after each look-up.

        Args:
            records_per_s: the maximum rate.

        Raises:
            RetriableError: the log cannot be read, or the lane has closed this index meanwhile.
            LogCorruptError, IdentityMismatchError: no gateway of this log wrote a record.
        """
        verified = self.verified
        async with aclosing(self._reader.read(verified.start, verified.end)) as batches:
            async for batch in batches:
                for first in range(0, len(batch), LOOKED_UP_MAX):
                    records = batch[first : first + LOOKED_UP_MAX]
                    began = self._clock.monotonic()
                    yield self._note(self._compare(records), records)
                    took_s = self._clock.monotonic() - began
                    await asyncio.sleep(max(0.0, len(records) / records_per_s - took_s))
        verified.offset = verified.end
        if self._next_seq is not None and self._next_seq <= self._last_seq:
            verified.differences += 1
            yield [Difference(GAP, verified.end, b"", "", "", None)]

    def _note(self, differences: list[Difference], records: Sequence[CheckedRecord]) -> list[Difference]:
        verified = self.verified
        verified.records += len(records)
        verified.offset = records[-1].offset + 1
        verified.differences += len(differences)
        return differences

    def _compare(self, records: Sequence[CheckedRecord]) -> list[Difference]:
        """Look up all keys of the records that are still in the window."""
        keys = [(record, record.identity.key) for record in records]
        keys += [(record, record.secondary_key) for record in records if record.secondary_key is not None]
        entries = self._looked_up([key for _, key in keys])
        known_from = self._index.known_from
        differences = self._gaps(records)
        for (record, key), entry in zip(keys, entries, strict=True):
            if record.offset >= known_from and (kind := _kind_of(record, entry)) is not None:
                identity = record.identity
                index_offset = None if entry is None else entry.offset
                differences.append(
                    Difference(kind, record.offset, key, identity.source, identity.message_id, index_offset)
                )
        return differences

    def _looked_up(self, keys: Sequence[EventKey]) -> list[Entry | None]:
        """Look keys up; the lane's own commits detect damage and repair it."""
        if not self._index.is_open:
            raise IndexUnavailableError("the lane has closed this index meanwhile", detail="begin again")
        try:
            return self._index.index.lookup(keys)
        except IndexCorruptError as err:
            raise IndexUnavailableError(f"the index cannot be read: {err}", detail=f"{err}") from err

    def _gaps(self, records: Sequence[CheckedRecord]) -> list[Difference]:
        gaps = []
        for record in records:
            if self._lineage is not None and record.offset < self._lineage.own_start:
                self._next_seq = self._lineage.lane_seq  # there are records of other slots before it
                continue
            identity, expected = record.identity, self._next_seq
            if expected is not None and identity.lane_seq != expected:
                gaps.append(Difference(GAP, record.offset, b"", identity.source, identity.message_id, None))
            self._next_seq = identity.lane_seq + 1
        return gaps


def _kind_of(record: CheckedRecord, entry: Entry | None) -> str | None:
    if entry is None:
        return MISSING
    if entry.offset != record.offset:
        return ELSEWHERE
    return None if entry.fingerprint == record.identity.fingerprint else CONTENT
