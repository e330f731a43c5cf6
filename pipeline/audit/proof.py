"""
The proof of clean records in one pass (pipeline/audit/runs.py), with Spark or without it.

It finds no fault by name. Where it does not hold, because of a fault or because it would need more than each
record by itself, as with client sessions, the checks in SQL judge all records and name what is wrong.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.audit import evaluation
from pipeline.audit.checks import PrecedingRecord
from pipeline.audit.deep import finder
from pipeline.audit.plain import plain_records
from pipeline.audit.runs import KEYS, PASSED, REPEATED, RUNS, keys_of, passed, repeated, repeated_in, runs_of
from pipeline.audit.verdict import PartitionSummary, Timeline
from pipeline.sources.records import Offsets
from pipeline.transforms.erased import Persons, in_archive

STEP_S = evaluation.ROW_STEPS_S[0]

_SUMS = ("records", "counted", "session_records", "unproved", "erased")
_FIRSTS = ("first_offset", "first_seq", "first_unproved", "first_erased")
_LASTS = ("last_offset", "last_seq")


class Proof(NamedTuple):
    """The records of an audit that has nothing to name."""

    summaries: list[PartitionSummary]
    timeline: Timeline


class Known(NamedTuple):
    """What is known before the first record is read."""

    partitions: int
    preceding: Mapping[int, PrecedingRecord]
    """The record before the first one, by partition."""
    counted_ranges: Mapping[int, tuple[int, int]]
    """Offsets [start, end) that a reconciliation counts, by partition."""
    later_from: Offsets | None = None
    """Of an archive, as of columns.read_with_changes."""


def prove(records: DataFrame, known: Known) -> Proof | None:
    """Return the proof that records have no fault; None if there is none. Records as of runs.passed."""
    pass_ = passed(known.partitions, known.counted_ranges, known.later_from)
    rows = records.mapInArrow(pass_, from_arrow_schema(PASSED)).persist(StorageLevel.DISK_ONLY)
    try:
        runs = rows.where(F.col("records").isNotNull()).select(*RUNS.names)
        proof = Proof(*evaluation.summarize_stretches(runs, known.preceding))
        if not _is_sound(proof.summaries):
            return None
        keys = rows.where(F.col("keys").isNotNull()).select(*KEYS.names)
        groups = keys.groupBy("partition", "bucket")
        found = groups.applyInArrow(repeated_in, from_arrow_schema(REPEATED))
        return proof if not found.collect() else None
    finally:
        rows.unpersist()


def prove_locally(
    batches: Iterable[pa.RecordBatch],
    known: Known,
    *,
    secret: bytes | None = None,
    persons: Persons | None = None,
) -> Proof | None:
    """
    Return what `prove` does without Spark.

    Args:
        batches: of runs.passed.
        known: before the first record.
        secret: to compute each key anew, as by --deep.
        persons: whose events there must be none of.
    """
    runs: list[pa.RecordBatch] = []
    keys: dict[tuple[int, int], list[npt.NDArray[np.uint64]]] = defaultdict(list)
    find = None if secret is None else finder(secret, known.partitions)
    for batch in batches:
        if not batch.num_rows:
            continue
        plain = plain_records(batch, known.partitions, known.later_from)
        if not plain.is_plain.all():
            return None
        if persons is not None and in_archive(persons, batch).any():
            return None
        if find is not None and any(wrong.num_rows for wrong in find([batch])):
            return None
        runs.append(runs_of(batch, plain, known.counted_ranges))
        for partition, bucket, blob in zip(*keys_of(plain).to_pydict().values(), strict=True):
            keys[partition, bucket].append(np.frombuffer(blob, np.uint64))
    if any(map(repeated, keys.values())):
        return None
    rows = summarized(pa.Table.from_batches(runs, RUNS), known.preceding)
    proof = Proof(*evaluation.summaries_of(rows, STEP_S))
    return proof if _is_sound(proof.summaries) else None


def summarized(runs: pa.Table, preceding: Mapping[int, PrecedingRecord]) -> list[dict[str, object]]:
    """Return rows of stretches.summarized, in steps of STEP_S, by the rules of stretches.linked."""
    rows = runs.sort_by([("partition", "ascending"), ("first_offset", "ascending")])
    time_us = rows["timestamp"].cast(pa.int64()).to_numpy()
    is_in_order = _is_in_order(rows, time_us, preceding)
    begins_s = time_us // (STEP_S * 1_000_000) * STEP_S
    rows = rows.append_column("is_in_order", pa.array(is_in_order))
    rows = rows.append_column("begins_s", pa.array(begins_s)).append_column("time_us", pa.array(time_us))
    aggregates = [
        *((name, "sum") for name in _SUMS),
        *((name, "min") for name in _FIRSTS),
        *((name, "max") for name in (*_LASTS, "faults", "time_us")),
        ("is_in_order", "all"),
    ]
    names = {f"{name}_{function}": name for name, function in aggregates} | {"time_us_max": "last_time_us"}
    grouped = rows.group_by(["topic", "partition", "begins_s"]).aggregate(aggregates)
    found: list[dict[str, object]] = grouped.rename_columns(
        [names.get(name, name) for name in grouped.column_names]
    ).to_pylist()
    return found


def _is_in_order(
    rows: pa.Table, time_us: npt.NDArray[np.int64], preceding: Mapping[int, PrecedingRecord]
) -> npt.NDArray[np.bool_]:
    """Whether each run continues the one before it in its partition; runs are in order of their offsets."""
    columns = ("partition", "first_offset", "last_offset", "first_seq", "last_seq")
    partition, first_offset, last_offset, first_seq, last_seq = (rows[name].to_numpy() for name in columns)
    is_in_order = np.ones(len(partition), np.bool_)
    follows = (last_offset[:-1] < first_offset[1:]) & (first_seq[1:] - 1 == last_seq[:-1])
    is_in_order[1:] = (follows & (time_us[:-1] <= time_us[1:])) | (partition[1:] != partition[:-1])
    firsts = np.flatnonzero(np.concatenate(([len(partition) > 0], partition[1:] != partition[:-1])))
    for place in firsts.tolist():
        before = preceding.get(int(partition[place]))
        if before is not None:
            time_before_us = -1 if before.timestamp is None else _microseconds(before)
            is_in_order[place] = first_seq[place] - 1 == before.lane_seq and time_before_us <= time_us[place]
    return is_in_order


def _microseconds(record: PrecedingRecord) -> int:
    return int(pc.cast(pa.scalar(record.timestamp, pa.timestamp("us", "UTC")), pa.int64()).as_py())


def _is_sound(summaries: Sequence[PartitionSummary]) -> bool:
    topics = {topic for summary in summaries for topic in (summary.first_topic, summary.last_topic)}
    return len(topics) <= 1 and all(s.is_in_order and not s.faults for s in summaries)
