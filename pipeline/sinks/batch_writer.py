"""
Runs a stream into a sink with a ledger: compares sink, checkpoint and source, then stores each batch once.

pipeline/sinks/ledger.py and refusal.py hold the rules; this module applies them to Spark.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError
from pipeline.runtime.checkpoint import Checkpoint
from pipeline.runtime.erasures import apply_erasures, leave_out_sessions
from pipeline.runtime.streams import StreamPlan, StreamTotals, run_stream
from pipeline.sinks.ledger import (
    CheckpointBatch,
    Ledger,
    next_ledger,
    next_log,
    start_offsets,
    with_columns,
    with_records_end,
)
from pipeline.sinks.refusal import Remedy, refusal
from pipeline.sources.extent import OffsetRanges, records_ends
from pipeline.sources.origin import Origin, origin_of
from pipeline.sources.records import Offsets, Selection, stream_records, with_log_epoch, within


class Sink(Protocol):
    """An output that stores rows and their ledger. It holds no session, so Spark Connect can pickle it."""

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """
        Return the ledger of the last commit; None if the output is empty.

        Raises:
            PipelineError: there are rows without a ledger, or the output does not answer.
        """

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """
        Add rows and the ledger that includes them, in one commit.

        Raises:
            PipelineError: the output's ledger is not the predecessor, so another job writes there.
        """


@dataclass(frozen=True)
class SinkPlan:
    """An output, how its rows are computed, and what the user allows if sink and checkpoint differ."""

    sink: Sink
    compute: Callable[[DataFrame], DataFrame]
    keeps_state: bool = False
    recovers: bool = False
    accepts_loss: bool = False
    takes_next_topic: bool | None = None
    """None: the job cannot go on with another topic."""
    columns_version: int | None = None
    """Of the rows' columns, if the ledger counts it: schema.ARCHIVE_VERSION."""

    def erased(self, rows: DataFrame) -> DataFrame:
        """Return records, or of a job with state its rows, without what is of erased persons."""
        return leave_out_sessions(rows) if self.keeps_state else apply_erasures(rows)

    def counts_batches(self, origin: Origin) -> bool:
        """Whether its ledger counts batches, since offsets alone do not determine the rows."""
        return self.keeps_state or not origin.has_offsets


class Stored(NamedTuple):
    """What a job has done."""

    totals: StreamTotals
    rows: int
    """Stored, by a job with state."""

    @property
    def read(self) -> int:
        """Rows read."""
        return self.totals.rows


def run_to_sink(
    spark: SparkSession, plan: StreamPlan, origin: Origin, output: SinkPlan, *, offsets_per_batch: int
) -> Stored:
    """
    Run a job's stream into its sink, and return what it did.

    Raises:
        PipelineError: sink, checkpoint and source do not belong together.
    """
    ledger = _checked_start(spark, plan, origin, output, output.sink.ledger(spark))
    records = stream_records(
        spark,
        plan.source,
        job=plan.job,
        offsets_per_batch=offsets_per_batch,
        starting=start_offsets(ledger, origin) if ledger is not None and origin.has_offsets else None,
    )
    if output.keeps_state:
        records = output.compute(records)
    writer = BatchWriter(
        plan.job, Checkpoint(plan.checkpoint), origin, output, ledger, partial(records_ends, plan.source)
    )
    try:
        totals = run_stream(
            records.writeStream.foreachBatch(writer), plan, read_to=start_offsets(ledger, origin)
        )
        return Stored(totals, writer.stored)
    except StreamingQueryException as err:
        # Spark's error says only that records are gone, not which ones and what to do.
        if sentence := _retention_loss(spark, plan, output):
            raise PipelineError(sentence) from err
        raise


def _checked_start(
    spark: SparkSession, plan: StreamPlan, origin: Origin, output: SinkPlan, ledger: Ledger | None
) -> Ledger | None:
    """
    Return the ledger to go on from.

    Refuses what does not belong together; or deletes the checkpoint, or closes the log before, if the user
    allows it.
    """
    checkpoint = Checkpoint(plan.checkpoint)
    by_batch = output.counts_batches(origin)
    may_follow = output.takes_next_topic is not None and not by_batch
    compare = partial(refusal, origin=origin, job=plan.job, by_batch=by_batch, may_follow=may_follow)
    if output.takes_next_topic and by_batch:
        raise PipelineError("--next-topic is for a topic, kafka:// or log://")
    state = checkpoint.read_state(spark)
    refused = compare(ledger, state)
    if ledger is not None and refused is not None and refused.remedy is Remedy.NEXT_TOPIC:
        if not output.takes_next_topic:
            raise PipelineError(refused.sentence)
        print(f"{plan.job}: --next-topic was given: {_left(ledger, origin)}", file=sys.stderr)
        # The sink holds nothing of the new log, so a checkpoint is of the one before, or of a killed start.
        ledger = next_log(ledger, origin, datetime.now(UTC).replace(microsecond=0))
        checkpoint.delete(spark)
        state, refused = None, compare(ledger, None)
    if refused is not None and refused.remedy is Remedy.RECOVER and output.recovers:
        print(f"{plan.job}: --recover was given: {refused.sentence}", file=sys.stderr)
        checkpoint.delete(spark)
        state, refused = None, compare(ledger, None)
    if refused is None:
        return ledger
    if not (refused.remedy is Remedy.ACCEPT_LOSS and output.accepts_loss):
        raise PipelineError(refused.sentence)
    print(f"{plan.job}: --accept-loss was given: {refused.sentence}", file=sys.stderr)
    if state is not None:
        checkpoint.delete(spark)
    return ledger


def _left(ledger: Ledger, origin: Origin) -> str:
    """Return what the output has of the log that it leaves."""
    ends = ", ".join(f"{p}:{end}" for p, end in sorted(ledger.ends.items()))
    return (
        f"with its first batch of {origin.id} the output leaves {ledger.origin}, whose partitions it has up "
        f"to the offsets {ends}; what came after them there is not in it"
    )


def _retention_loss(spark: SparkSession, plan: StreamPlan, output: SinkPlan) -> str | None:
    """Return why the next start is refused, if retention has overtaken this job; None if that is unknown."""
    with suppress(PipelineError):
        origin = origin_of(plan.source)
        refused = refusal(
            output.sink.ledger(spark), None, origin, job=plan.job, by_batch=output.counts_batches(origin)
        )
        if refused is not None and refused.remedy is Remedy.ACCEPT_LOSS:
            return refused.sentence
    return None


def store_counted(sink: Sink, rows: DataFrame, ledger: Ledger) -> int:
    """Store rows, and return how many."""
    counted = Observation()
    sink.store(rows.observe(counted, F.count(F.lit(1)).alias("rows")), ledger)
    return int(counted.get["rows"])


@dataclass
class BatchWriter:
    """Stores each batch of a stream once; the function of `foreachBatch`."""

    job: str
    checkpoint: Checkpoint
    origin: Origin
    output: SinkPlan
    ledger: Ledger | None  # of the sink now
    find_records_ends: Callable[[OffsetRanges], Offsets]
    stored: int = 0
    """Rows, of a job with state."""
    _read_to: Offsets = field(default_factory=dict)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Store the rows of a batch that the sink does not hold."""
        spark = rows.sparkSession
        ends = self.checkpoint.planned_end(spark, batch_id)
        if self.origin.has_offsets and not ends:
            raise PipelineError(
                f"the checkpoint {self.checkpoint.path} does not say where batch {batch_id} ends"
            )
        by_batch = self.output.counts_batches(self.origin)
        batch = CheckpointBatch(self.checkpoint.query(spark) or "", batch_id) if by_batch else None
        ledger = next_ledger(self.ledger, self.origin, ends, job=self.job, batch=batch)
        if ledger is None:
            print(f"{self.job}: batch {batch_id} is stored already, by an earlier run", file=sys.stderr)
        else:
            if not by_batch:
                rows = self._not_held(rows)
            ledger = with_records_end(ledger, self.ledger, self._records_ends(ledger.added))
            if self.output.columns_version is not None:
                ledger = with_columns(ledger, self.ledger, self.output.columns_version)
            rows = self.output.erased(rows)
            if self.output.keeps_state:
                self.stored += store_counted(self.output.sink, rows, ledger)
            else:
                rows = with_log_epoch(rows, ledger.log_epoch)
                self.output.sink.store(self.output.compute(rows), ledger)
            self.ledger = ledger
        self._read_to = ends

    def _records_ends(self, added: OffsetRanges) -> Offsets:
        """Find where the records of a batch end; without an answer the batch is stored all the same."""
        try:
            return self.find_records_ends(added) if added else {}
        except PipelineError as err:
            print(f"{self.job}: an audit may not know where the records end: {err}", file=sys.stderr)
            return {}

    def _not_held(self, rows: DataFrame) -> DataFrame:
        """Leave out the rows that the sink holds: each partition of it may be some batches ahead."""
        begins = start_offsets(self.ledger, self.origin)
        ahead = {p: begin for p, begin in begins.items() if begin != self._read_to.get(p)}
        return within(rows, Selection(from_offsets=ahead)) if ahead else rows
