"""Sessionize: what each user did without a long pause, as one row, into Parquet."""

from datetime import timedelta
from typing import Annotated

import typer

from pipeline.runtime import StreamPlan, create_session, default_checkpoint, options, run_stream
from pipeline.sources import stream_records
from pipeline.transforms import sessions


def sessionize(
    source: options.SourceOption,
    out: Annotated[str, typer.Option("--out", metavar="PATH", help="folder of the sessions")],
    gap: Annotated[
        timedelta,
        typer.Option(
            "--gap",
            parser=options.parsed(options.duration),
            metavar="DURATION",
            show_default="30m",
            help="a pause that ends a session",
        ),
    ] = timedelta(minutes=30),
    lateness: Annotated[
        timedelta,
        typer.Option(
            "--lateness",
            parser=options.parsed(options.duration),
            metavar="DURATION",
            show_default="2h",
            help="how far partitions may lie apart in log time; what is later is dropped, and said",
        ),
    ] = timedelta(hours=2),
    checkpoint: options.CheckpointOption = None,
    once: options.OnceOption = False,
    interval: options.IntervalOption = options.INTERVAL,
    batch_offsets: options.BatchOption = options.BATCH_OFFSETS,
    metrics_port: options.MetricsPortOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Store one row a session: a user's events of a source without a pause longer than --gap.

    A session is stored once it is over by log time, so the latest ones wait in the job's state, also
    with --once, for the next start.
    """
    spark = create_session("sessionize", remote=remote, conf=dict(conf or []), formats=source.formats)
    records = stream_records(spark, source, job="sessionize", offsets_per_batch=batch_offsets)
    writer = records.transform(sessions, gap, lateness).writeStream.format("parquet").option("path", out)
    plan = StreamPlan(
        "sessionize", source, checkpoint or default_checkpoint(out), once, interval, metrics_port
    )
    rows = run_stream(writer, plan)
    print(f"{rows:,} events read; the sessions are in parquet://{out}")
