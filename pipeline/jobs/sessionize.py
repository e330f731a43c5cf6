"""Sessionize: what each user did without a long pause, as one row, into Parquet."""

from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from pipeline.runtime import options
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.session import create_session
from pipeline.runtime.stages import stage_teller
from pipeline.runtime.streams import StreamPlan
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.stored import Storing, run_stored
from pipeline.sources.origin import origin_of
from pipeline.transforms.clean_topic import sessions


class Whose(StrEnum):
    """Whom a session is of."""

    USER = "user"
    VISITOR = "visitor"


class Clock(StrEnum):
    """Which time tells where a session ends."""

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
            "how far partitions may lie apart in log time; what is later is dropped, and said",
            shown="2h",
        ),
    ] = timedelta(hours=2),
    by: Annotated[
        Whose,
        typer.Option("--by", help="a session is a user's, or a visitor's: a device's, also over a login"),
    ] = Whose.USER,
    clock: Annotated[
        Clock,
        typer.Option(
            "--time",
            help="when the gateway took an event, or when the client says it happened, if that is at most "
            "--lateness before",
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

    A session is stored once it is over by log time, so the latest ones wait in the job's state, also
    with --once, for the next start. That state is in the checkpoint and cannot be made again: without
    it, begin anew with another --out.
    """
    tell = stage_teller("sessionize")
    tell(f"asking {source}")
    origin = origin_of(source)
    tell("starting Spark")
    spark = create_session("sessionize", remote=remote, conf=dict(conf or []), formats=source.formats)
    tell(f"reading {source}")
    checkpoint = checkpoint or default_checkpoint(out, "sessionize", origin.id)
    plan = StreamPlan("sessionize", source, checkpoint, once, interval, metrics_port)
    gathered = partial(
        sessions,
        gap=gap,
        lateness=lateness,
        by_visitor=by is Whose.VISITOR,
        by_event_time=clock is Clock.EVENT,
    )
    storing = Storing(ParquetFolder(out), gathered, keeps_state=True, recovers=recover)
    rows = run_stored(spark, plan, origin, storing, offsets_per_batch=batch_offsets)
    print(f"{rows:,} events read; the sessions are in parquet://{out}")
