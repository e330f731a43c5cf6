"""Minute counts: events per minute, source and type, into Postgres or Parquet, every event once."""

from typing import Annotated

import typer

from pipeline.errors import UsageError
from pipeline.runtime import StreamPlan, create_session, default_checkpoint, options, run_stream
from pipeline.sinks import ParquetCounts, PostgresCounts
from pipeline.sources import stream_records

POSTGRES, PARQUET = ("postgresql://", "postgres://"), "parquet://"


def minute_counts(
    source: options.SourceOption,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            envvar="PIPELINE_TO",
            help="postgresql://user:password@host/database or parquet://PATH",
        ),
    ],
    checkpoint: options.CheckpointOption = None,
    once: options.OnceOption = False,
    interval: options.IntervalOption = options.INTERVAL,
    batch_offsets: options.BatchOption = options.BATCH_OFFSETS,
    metrics_port: options.MetricsPortOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Count events per minute of log time, source and type.

    In Postgres the table minute_counts grows by each batch, in the transaction that notes the batch
    in pipeline_ledger. In Parquet each batch has a folder, and readers sum up.
    """
    path = to.removeprefix(PARQUET)
    if to.startswith(POSTGRES) and checkpoint is None:
        raise UsageError("counts in Postgres need a --checkpoint")
    if not to.startswith((*POSTGRES, PARQUET)):
        raise UsageError(f"--to {to!r} is neither postgresql:// nor parquet://")
    checkpoint = checkpoint or default_checkpoint(path)
    spark = create_session("minute-counts", remote=remote, conf=dict(conf or []), formats=source.formats)
    records = stream_records(spark, source, job="minute-counts", offsets_per_batch=batch_offsets)
    sink = ParquetCounts(path) if to.startswith(PARQUET) else PostgresCounts(spark, to, checkpoint)
    plan = StreamPlan("minute-counts", source, checkpoint, once, interval, metrics_port)
    rows = run_stream(records.writeStream.foreachBatch(sink), plan)
    print(f"{rows:,} events counted")
