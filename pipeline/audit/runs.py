"""
One pass over Arrow batches, which suffices to prove clean records: by Spark's mapInArrow, and without Spark.

    runs_of     the runs of a batch: records that follow one another, as rows of stretches.stretches
    keys_of     the first 64 bits of the batch's event keys, sorted, in BUCKETS of each partition
    repeated    whether a key is there twice

A key determines its partition, unless its record is of a client session, which is not plain. So two records
of one event meet in one bucket. Other keys may have the same 64 bits: the checks in SQL decide.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.audit.plain import Plain, plain_records
from pipeline.sources.records import Offsets

BUCKET_BITS = 3
BUCKETS = 1 << BUCKET_BITS

NOT_PLAIN = 1
"""As `faults` of a run."""

_UTC_US = pa.timestamp("us", "UTC")
RUNS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", _UTC_US),
        ("records", pa.int64()),
        ("counted", pa.int64()),
        ("faults", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("offset_count", pa.int64()),
        ("session_records", pa.int64()),
        ("unproved", pa.int64()),
        ("erased", pa.int64()),
        ("first_unproved", pa.int64()),
        ("first_erased", pa.int64()),
    ]
)
KEYS = pa.schema([("partition", pa.int32()), ("bucket", pa.int32()), ("keys", pa.binary())])
PASSED = pa.schema([*RUNS, *list(KEYS)[1:]])
"""Rows of RUNS, in which `keys` is null, and of KEYS, in which `records` is."""

REPEATED = pa.schema([("partition", pa.int32())])


def passed(
    partitions: int, counted_ranges: Mapping[int, tuple[int, int]], later_from: Offsets | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow: from schema.RECORD, and columns as of plain_records, to PASSED."""

    def pass_(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                plain = plain_records(batch, partitions, later_from)
                yield _as_passed(runs_of(batch, plain, counted_ranges))
                yield _as_passed(keys_of(plain))

    return pass_


def repeated_in(table: pa.Table) -> pa.Table:
    """Return a row if a key is there twice; for applyInArrow, over KEYS of one partition and bucket."""
    parts = [np.frombuffer(keys, np.uint64) for keys in table.column("keys").to_pylist()]
    found = table.column("partition").to_pylist()[:1] if repeated(parts) else []
    return pa.table([pa.array(found, pa.int32())], schema=REPEATED)


def repeated(parts: list[npt.NDArray[np.uint64]]) -> bool:
    """Whether a number is there twice."""
    keys = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
    return bool((keys[1:] == keys[:-1]).any())


def runs_of(
    batch: pa.RecordBatch, plain: Plain, counted_ranges: Mapping[int, tuple[int, int]]
) -> pa.RecordBatch:
    """
    Return the runs of a batch in RUNS: offset and lane_seq of each record are one more than those before it.

    Args:
        batch: not empty.
        plain: of the batch.
        counted_ranges: offsets [start, end) that a reconciliation counts, by partition.
    """
    partition, offset, time_us, lane_seq, _, is_plain, is_unproved, is_erased = plain
    follows = (
        (np.diff(partition) == 0)
        & (np.diff(offset) == 1)
        & (np.diff(lane_seq) == 1)
        & (np.diff(time_us) == 0)
        & (np.diff(is_plain.astype(np.int8)) == 0)
    )
    starts = np.flatnonzero(np.concatenate(([True], ~follows)))
    lasts = np.append(starts[1:], len(offset)) - 1
    counted = np.zeros(len(offset), np.int64)
    for number, (start, end) in counted_ranges.items():
        counted += (partition == number) & (offset >= start) & (offset < end)
    records = lasts - starts + 1

    def first_of(marks: npt.NDArray[np.bool_]) -> pa.Array:
        smallest = np.minimum.reduceat(np.where(marks, offset, np.iinfo(np.int64).max), starts)
        return pa.array(smallest, mask=~np.logical_or.reduceat(marks, starts))

    columns = [
        _text_at(batch.column("topic"), starts),
        pa.array(partition[starts], pa.int32()),
        pa.array(time_us[starts]).cast(_UTC_US),
        pa.array(records),
        pa.array(np.add.reduceat(counted, starts)),
        pa.array(np.where(is_plain[starts], 0, NOT_PLAIN), pa.int32()),
        *(pa.array(values[at]) for values in (offset, lane_seq) for at in (starts, lasts)),
        pa.array(records),
        pa.array(np.zeros(len(starts), np.int64)),
        *(pa.array(np.add.reduceat(marks.astype(np.int64), starts)) for marks in (is_unproved, is_erased)),
        *(first_of(marks) for marks in (is_unproved, is_erased)),
    ]
    return pa.record_batch(columns, schema=RUNS)


def keys_of(plain: Plain) -> pa.RecordBatch:
    """Return the keys of a batch in KEYS, as numbers of this machine's byte order."""
    order = np.lexsort((plain.key, plain.partition))
    partition, key = plain.partition[order], plain.key[order]
    bucket = (key >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
    place = partition * BUCKETS + bucket
    starts = np.flatnonzero(np.concatenate(([True], np.diff(place) != 0)))
    ends = np.append(starts[1:], len(key))
    blobs = [key[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    columns = [
        pa.array(partition[starts], pa.int32()),
        pa.array(bucket[starts], pa.int32()),
        pa.array(blobs, pa.binary()),
    ]
    return pa.record_batch(columns, schema=KEYS)


def _text_at(column: pa.Array, places: npt.NDArray[np.int64]) -> pa.Array:
    return column.take(pa.array(places)).cast(pa.string())


def _as_passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in PASSED
    ]
    return pa.record_batch(arrays, schema=PASSED)
