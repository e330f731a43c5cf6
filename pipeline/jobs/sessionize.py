"""Sessionize: stores the events of each user without a long pause as one row, in a lake."""

from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime import options
from pipeline.runtime.beginning import begin
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.stall import stalled_partitions
from pipeline.runtime.streams import StreamPlan
from pipeline.schema import DAY, SESSIONS, by_day
from pipeline.sinks.backfill import Backfill
from pipeline.sinks.batch_writer import SinkPlan, Stored, run_to_sink, store_counted
from pipeline.sinks.days import days_of
from pipeline.sinks.lake import LakeFormat, LakeSink, lake_sink, output_of
from pipeline.sinks.ledger import CheckpointBatch, Ledger
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.extent import ranges_of, selection_of
from pipeline.sources.kafka_options import with_options
from pipeline.sources.origin import Origin
from pipeline.sources.records import Selection, Source, read_records
from pipeline.transforms.clean_topic import sessions

JOB = "sessionize"
SESSION_MAX = timedelta(days=1)
"""Where days are replaced, a longer session begins anew after it."""


class Owner(StrEnum):
    """To whom a session belongs."""

    USER = "user"
    VISITOR = "visitor"


class Clock(StrEnum):
    """The time by which a session ends."""

    LOG = "log"
    EVENT = "event"


def sessionize(
    source: options.SourceOption,
    out: Annotated[str, typer.Option("--out", metavar="PATH", help="folder of the sessions")],
    gap: Annotated[
        timedelta,
        options.duration_option("--gap", "a pause that ends a session", shown="30m"),
    ] = timedelta(minutes=30),
    lateness: Annotated[
        timedelta,
        options.duration_option(
            "--lateness",
            "how far partitions may lie apart in log time; later events are dropped, and counted",
            shown="2h",
        ),
    ] = timedelta(hours=2),
    by: Annotated[
        Owner,
        typer.Option(
            "--by", help="whose session: a user's, or a visitor's, which is a device's and spans a login"
        ),
    ] = Owner.USER,
    clock: Annotated[
        Clock,
        typer.Option(
            "--time",
            help="log: when the gateway accepted an event; event: the client's time, if that is at most "
            "--lateness earlier",
        ),
    ] = Clock.LOG,
    close: Annotated[
        bool,
        typer.Option(
            "--close",
            help="store all sessions of the source, the last ones too, at once in an --out of its own: for a "
            "source that has ended",
        ),
    ] = False,
    lake_format: Annotated[
        LakeFormat, typer.Option("--format", help="format of the sessions")
    ] = LakeFormat.PARQUET,
    since: options.FirstDayOption = None,
    until: options.EndDayOption = None,
    checkpoint: options.CheckpointOption = None,
    recover: options.RecoverOption = False,
    once: options.OnceOption = False,
    interval: options.IntervalOption = options.INTERVAL,
    batch_offsets: options.BatchOption = options.BATCH_OFFSETS,
    metrics_port: options.MetricsPortOption = None,
    metrics_file: options.MetricsFileOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
    kafka: options.KafkaOption = None,
) -> None:
    """
    Store one row a session: a user's or visitor's events of a source without a pause longer than --gap.

    A session is stored when it has ended by log time; until then it is in the job's state, also after
    --once. That state is in the checkpoint alone: without it, begin anew with another --out.
    """
    if close and checkpoint is not None:
        raise UsageError("--close keeps no state, so it takes no --checkpoint")
    source = with_options(source, kafka)
    lake = output_of(out, lake_format, checkpoint)
    days = days_of(since, until, is_parquet=lake_format is LakeFormat.PARQUET)
    spark, origin = begin(JOB, source, lake, remote=remote, conf=conf)
    sink: LakeSink = ParquetFolder(lake.path)
    if lake_format is not LakeFormat.PARQUET:
        sink = lake_sink(lake, by_day(SESSIONS), DAY)
    compute = partial(
        _sessions,
        has_day=lake_format is not LakeFormat.PARQUET,
        gap=gap,
        lateness=lateness,
        by_visitor=by is Owner.VISITOR,
        by_event_time=clock is Clock.EVENT,
    )
    if close:
        closed = _closed(spark, source, origin, SinkPlan(sink, compute, keeps_state=True))
        print(f"{closed:,} sessions closed; they are in {lake}")
        return
    checkpoint = checkpoint or default_checkpoint(lake.path, JOB, origin.id)
    plan = StreamPlan(JOB, source, checkpoint, once, interval, metrics_port, metrics_file)
    output = SinkPlan(sink, compute, keeps_state=True, recovers=recover)
    if days is not None and not isinstance(sink, ParquetFolder):
        # The sessions of a day depend on what came before, and go on behind it.
        around = SESSION_MAX + gap + 2 * lateness
        Backfill(spark, plan, origin, output, sink, batch_offsets, around).replace(days)
        print(f"the days {days} of {lake} are replaced")
        return
    stored = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    told = _told(stored, gap + lateness)
    print(f"{stored.read:,} events read; {told}; the sessions are in {lake}")


def _sessions(records: DataFrame, *, has_day: bool, **rules: Any) -> DataFrame:
    """Return sessions, with the day of their begin as `dt` on demand."""
    found = sessions(records, **rules)
    # Not of `began` alone: Spark would apply a condition on it to events, before they are joined to sessions.
    day = F.date_format(F.least("began", "ended"), "yyyy-MM-dd")
    return found.withColumn("dt", day) if has_day else found


def _told(stored: Stored, pause: timedelta) -> str:
    """Return how many sessions were stored, and when those in the state will be."""
    totals = stored.totals
    closed = f"{stored.rows:,} sessions closed"
    if not totals.state_rows or totals.watermark is None:
        return closed
    # A session ends a gap after its last event, which is at most a lateness newer than the watermark.
    until = totals.watermark + pause + timedelta(seconds=1)
    return f"{closed}, {totals.state_rows:,} open until events of about {until:%Y-%m-%dT%H:%M:%SZ} come"


def _closed(spark: SparkSession, source: Source, origin: Origin, output: SinkPlan) -> int:
    """
    Store all sessions of a source in one commit, and return how many.

    Raises:
        PipelineError: the output is not empty, or an open transaction holds records back.
    """
    if stalled := stalled_partitions(source):
        raise PipelineError("; ".join(stalled))
    if output.sink.ledger(spark) is not None:
        raise PipelineError("--close needs an --out of its own, and this one holds sessions: name another")
    ranges = ranges_of(source, Selection()) or {}
    records = read_records(spark, source, selection_of(ranges))
    ledger = Ledger(JOB, 1, origin.id, origin.partitions, ranges, ranges, batch=CheckpointBatch("close", 0))
    return store_counted(output.sink, output.erased(output.compute(records)), ledger)
