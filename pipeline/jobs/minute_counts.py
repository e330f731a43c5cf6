"""Minute counts: events per minute, source and type, into Postgres or Parquet, every event once."""

from typing import Annotated

import typer
from pyspark.sql import DataFrame

from pipeline.errors import UsageError
from pipeline.runtime import StreamPlan, create_session, default_checkpoint, options
from pipeline.sinks import ParquetFolder, PostgresCounts, Storing, run_stored
from pipeline.sources import origin_of
from pipeline.transforms import per_minute

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
    recover: options.RecoverOption = False,
    accept_loss: options.AcceptLossOption = False,
    once: options.OnceOption = False,
    interval: options.IntervalOption = options.INTERVAL,
    batch_offsets: options.BatchOption = options.BATCH_OFFSETS,
    metrics_port: options.MetricsPortOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Count events per minute of log time, source and type.

    In Postgres the table minute_counts grows by each batch, in the transaction that notes in
    minute_counts_ledger what is counted. In Parquet each batch has a file, and readers sum up.
    """
    path = to.removeprefix(PARQUET)
    if to.startswith(POSTGRES) and checkpoint is None:
        raise UsageError("counts in Postgres need a --checkpoint")
    if not to.startswith((*POSTGRES, PARQUET)):
        raise UsageError(f"--to {to!r} is neither postgresql:// nor parquet://")
    origin = origin_of(source)
    checkpoint = checkpoint or default_checkpoint(path, "minute-counts", origin.id)
    spark = create_session("minute-counts", remote=remote, conf=dict(conf or []), formats=source.formats)
    sink = ParquetFolder(path) if to.startswith(PARQUET) else PostgresCounts(to)
    plan = StreamPlan("minute-counts", source, checkpoint, once, interval, metrics_port)
    storing = Storing(sink, _counted, recovers=recover, accepts_loss=accept_loss)
    rows = run_stored(spark, plan, origin, storing, offsets_per_batch=batch_offsets)
    print(f"{rows:,} events counted")


def _counted(records: DataFrame) -> DataFrame:
    # Few rows: one file.
    return records.transform(per_minute).coalesce(1)
