"""
Runs a stream into a sink that keeps a ledger: compares both at the start, and stores batch after batch.

What the comparison means stands in pipeline/sinks/ledger.py; here it meets Spark.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.checkpoint import Checkpoint
from pipeline.runtime.streams import StreamPlan, run_stream
from pipeline.sinks.ledger import (
    Batch,
    Ledger,
    Refusal,
    Way,
    refusal,
    starting,
    successor,
    with_records_end,
)
from pipeline.sources.extent import Ranges, records_ends
from pipeline.sources.origin import Origin, origin_of
from pipeline.sources.records import Offsets, Span, stream_records, within

Compute = Callable[[DataFrame], DataFrame]


class Sink(Protocol):
    """A place of rows that knows what it holds. It has no session: Spark Connect takes it to its server."""

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """
        Return what it holds; None if it is empty.

        Raises:
            PipelineError: there are rows and no ledger, or it does not answer.
        """

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """
        Add rows together with the ledger that is true then, in one commit.

        Raises:
            PipelineError: its ledger is not the predecessor of this one: another job writes there.
        """


class Table(Sink, Protocol):
    """A sink whose files may be written anew beside the stream, unseen by readers."""

    def compact(self, spark: SparkSession, *, before: str, keep: timedelta) -> None:
        """
        Merge the small files of the days before one, beside the stream, and delete what no longer counts.

        Args:
            before: a day.
            keep: how long files that no longer count stay for readers, and for batches under way.
        """


@dataclass(frozen=True)
class Storing:
    """What is stored where, and what a job was told for the case that sink and checkpoint differ."""

    sink: Sink
    compute: Compute
    keeps_state: bool = False
    recovers: bool = False
    accepts_loss: bool = False


def run_stored(
    spark: SparkSession, plan: StreamPlan, origin: Origin, storing: Storing, *, offsets_per_batch: int
) -> int:
    """
    Run a job's stream into its sink, and return how many rows were read.

    Raises:
        PipelineError: sink, checkpoint and source do not belong together.
    """
    by_batch = storing.keeps_state or not origin.has_offsets
    ledger = storing.sink.ledger(spark)
    _clear_way(spark, plan, origin, storing, ledger)
    records = stream_records(
        spark,
        plan.source,
        job=plan.job,
        offsets_per_batch=offsets_per_batch,
        starting=starting(ledger, origin) if ledger is not None and origin.has_offsets else None,
    )
    stored = Stored(
        plan.job,
        Checkpoint(plan.checkpoint),
        origin,
        storing,
        by_batch,
        ledger,
        look=partial(records_ends, plan.source),
    )
    if storing.keeps_state:
        records = storing.compute(records)
    try:
        return run_stream(records.writeStream.foreachBatch(stored), plan)
    except StreamingQueryException as err:
        # Of records that were deleted under a job at work Spark says no more than that they are gone.
        if found := _overtaken(spark, plan, storing, by_batch):
            raise PipelineError(found.sentence) from err
        raise


def _overtaken(spark: SparkSession, plan: StreamPlan, storing: Storing, by_batch: bool) -> Refusal | None:
    """Return why the next start is refused, if retention overtook this one; None if nobody answers."""
    with suppress(PipelineError):
        ledger = storing.sink.ledger(spark)
        found = refusal(ledger, None, origin_of(plan.source), job=plan.job, by_batch=by_batch)
        return found if found is not None and found.way is Way.ACCEPT_LOSS else None
    return None


def _clear_way(
    spark: SparkSession, plan: StreamPlan, origin: Origin, storing: Storing, ledger: Ledger | None
) -> None:
    """Refuse what does not belong together, or give up the checkpoint where the user said so."""
    checkpoint = Checkpoint(plan.checkpoint)
    reached = checkpoint.reached(spark)
    compared = partial(
        refusal, ledger, origin=origin, job=plan.job, by_batch=storing.keeps_state or not origin.has_offsets
    )
    found = compared(reached)
    if found is not None and found.way is Way.RECOVER and storing.recovers:
        _say(plan, found)
        checkpoint.delete(spark)
        reached, found = None, compared(None)
    if found is not None and found.way is Way.ACCEPT_LOSS and storing.accepts_loss:
        _say(plan, found)
        if reached is not None:
            checkpoint.delete(spark)
    elif found is not None:
        raise PipelineError(found.sentence)


def _say(plan: StreamPlan, found: Refusal) -> None:
    print(f"{plan.job}: {found.way.value} was said, and {found.sentence}", file=sys.stderr)


class Stored:
    """Stores each batch of a stream once; what `foreachBatch` calls."""

    def __init__(
        self,
        job: str,
        checkpoint: Checkpoint,
        origin: Origin,
        storing: Storing,
        by_batch: bool,
        ledger: Ledger | None,
        *,
        look: Callable[[Ranges], Offsets],
    ) -> None:
        self._look = look
        self._job, self._checkpoint, self._origin, self._by_batch = job, checkpoint, origin, by_batch
        self._sink, self._compute, self._keeps_state = storing.sink, storing.compute, storing.keeps_state
        self._ledger = ledger
        self._read_to: Offsets = {}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Store what the sink does not hold of a batch."""
        spark = rows.sparkSession
        ends = self._checkpoint.planned_end(spark, batch_id)
        if self._origin.has_offsets and not ends:
            raise PipelineError(
                f"the checkpoint {self._checkpoint.path} does not say where batch {batch_id} ends"
            )
        batch = Batch(self._checkpoint.query(spark) or "", batch_id) if self._by_batch else None
        ledger = successor(self._ledger, self._origin, ends, job=self._job, batch=batch)
        if ledger is not None:
            if not self._by_batch:
                rows = self._lacking(rows)
            ledger = with_records_end(ledger, self._ledger, self._records_ends(ledger.added))
            self._sink.store(rows if self._keeps_state else self._compute(rows), ledger)
            self._ledger = ledger
        self._read_to = ends

    def _records_ends(self, added: Ranges) -> Offsets:
        """Look where the records of a batch end. Who cannot look stores them all the same."""
        try:
            return self._look(added) if added else {}
        except PipelineError as err:
            print(f"{self._job}: an audit may not know where the records end: {err}", file=sys.stderr)
            return {}

    def _lacking(self, rows: DataFrame) -> DataFrame:
        """Leave out what the sink holds: it may be ahead for some batches, each partition by itself."""
        begins = starting(self._ledger, self._origin)
        ahead = {p: begin for p, begin in begins.items() if begin != self._read_to.get(p)}
        return within(rows, Span(from_offsets=ahead)) if ahead else rows
