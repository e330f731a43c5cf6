"""Looks for events that may be one event under several ids, in any source; memory is bounded."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.transforms.suspects import SIGNATURES, Batches, Group, group_of, groups_of, signatures

GROUPS_MAX = 50_000
"""Of this many the details are read: some 50 MB."""

MEMBERS_MAX = 20 * GROUPS_MAX
"""Rows of details without Spark, which keeps all of them."""


class Found(NamedTuple):
    """The groups that were looked at."""

    groups: list[Group]
    left_out: int
    """Groups beyond GROUPS_MAX, or an estimate of them."""


def find_locally(read: Callable[[], Batches]) -> Found:
    """
    Return what `find` does without Spark.

    Eight bytes of each record are kept, and the details of those that share them with another, which the
    records are read a second time for.

    Args:
        read: returns the records, schema.RECORD, each time from the first one on.
    """
    known = [batch.column("signature").to_numpy() for batch in signatures(read())]
    repeated = _repeated(np.concatenate(known) if known else np.empty(0, np.int64))
    del known
    looked_at = repeated[:GROUPS_MAX]
    groups = groups_of(_members(signatures(read()), looked_at)) if len(looked_at) else []
    return Found(groups, len(repeated) - len(looked_at))


def find(records: DataFrame) -> Found:
    """Return the groups among records of schema.RECORD."""
    rows = records.mapInArrow(signatures, from_arrow_schema(SIGNATURES))
    place = F.struct("partition", "offset", "message_id", "source", "library", "version", "name")
    found = (
        rows.groupBy("signature")
        .agg(
            F.count_distinct("message_id").alias("ids"),
            F.count_distinct("content").alias("contents"),
            F.min(place).alias("first"),
            F.max(place).alias("last"),
        )
        .where("ids > 1")
        .persist()
    )
    try:
        groups = [
            group_of(row["first"].asDict(), row["last"].asDict(), row["ids"], row["contents"])
            for row in found.orderBy("signature").limit(GROUPS_MAX).collect()
        ]
        left_out = found.count() - len(groups) if len(groups) == GROUPS_MAX else 0
    finally:
        found.unpersist()
    return Found(groups, left_out)


def _repeated(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the values that are there more than once, ascending."""
    values.sort()
    return np.unique(values[1:][values[1:] == values[:-1]])


def _members(rows: Batches, looked_at: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these signatures, up to MEMBERS_MAX."""
    left = MEMBERS_MAX
    for batch in rows:
        is_member = np.isin(batch.column("signature").to_numpy(), looked_at)
        members = batch.filter(pa.array(is_member)).slice(0, left)
        left -= members.num_rows
        yield members
