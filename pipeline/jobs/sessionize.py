"""Sessionize: stores the events of each user without a long pause as one row, in Parquet."""

from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from pipeline.runtime import options
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.runtime.streams import StreamPlan
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.origin import origin_of
from pipeline.transforms.clean_topic import sessions


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
    checkpoint: options.CheckpointOption = None,
    recover: options.RecoverOption = False,
    once: options.OnceOption = False,
    interval: options.IntervalOption = options.INTERVAL,
    batch_offsets: options.BatchOption = options.BATCH_OFFSETS,
    metrics_port: options.MetricsPortOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Store one row a session: a user's or visitor's events of a source without a pause longer than --gap.

    A session is stored when it has ended by log time; until then it is in the job's state, also after
    --once. That state is in the checkpoint alone: without it, begin anew with another --out.
    """
    log_progress = progress_logger("sessionize")
    log_progress(f"asking {source}")
    origin = origin_of(source)
    log_progress("starting Spark")
    spark = start_session("sessionize", source, remote=remote, conf=conf)
    log_progress(f"reading {source}")
    checkpoint = checkpoint or default_checkpoint(out, "sessionize", origin.id)
    plan = StreamPlan("sessionize", source, checkpoint, once, interval, metrics_port)
    compute = partial(
        sessions,
        gap=gap,
        lateness=lateness,
        by_visitor=by is Owner.VISITOR,
        by_event_time=clock is Clock.EVENT,
    )
    output = SinkPlan(ParquetFolder(out), compute, keeps_state=True, recovers=recover)
    rows = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    print(f"{rows:,} events read; the sessions are in parquet://{out}")
