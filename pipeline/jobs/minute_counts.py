"""Minute counts: counts events per minute, source and type, each once, into Postgres or Parquet."""

import sys
from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.runtime.streams import StreamPlan
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sources.origin import origin_of
from pipeline.transforms.clean_topic import per_minute

JOB = "minute-counts"
SHOWN_CHARS = 40
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
    metrics_file: options.MetricsFileOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Count events per minute of log time, source and type.

    In Postgres each batch adds to the table minute_counts, in one transaction with the ledger in
    minute_counts_ledger. In Parquet each batch has a file, and readers sum up.
    """
    path = to.removeprefix(PARQUET)
    if to.startswith(POSTGRES) and checkpoint is None:
        raise UsageError("counts in Postgres need a --checkpoint")
    if not to.startswith((*POSTGRES, PARQUET)):
        raise UsageError(f"--to {to!r} is neither postgresql:// nor parquet://")
    log_progress = progress_logger(JOB)
    log_progress(f"asking {source}")
    origin = origin_of(source)
    checkpoint = checkpoint or default_checkpoint(path, JOB, origin.id)
    log_progress("starting Spark")
    spark = start_session(JOB, source, remote=remote, conf=conf)
    log_progress(f"reading {source}")
    sink = ParquetFolder(path) if to.startswith(PARQUET) else PostgresCounts(to)
    plan = StreamPlan(JOB, source, checkpoint, once, interval, metrics_port, metrics_file)
    output = SinkPlan(sink, _counted, recovers=recover, accepts_loss=accept_loss)
    stored = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    print(f"{stored.read:,} events counted")


def _counted(records: DataFrame) -> DataFrame:
    """
    Count a batch in the driver, and report altered minutes, sources and types on stderr.

    The driver gets a row for each minute, source and type of the batch.
    """
    counts = records.transform(per_minute).withColumn("minute", F.unix_micros("minute")).collect()
    for row in counts:
        if row["altered"]:
            place = f"partition {row['first_altered'][0]} offset {row['first_altered'][1]}"
            name = f"source {row['source'][:SHOWN_CHARS]!r} type {row['type'][:SHOWN_CHARS]!r}"
            print(f"{JOB}: {row['altered']:,} events, one is {place}, count as {name}", file=sys.stderr)
    rows = [(row["minute"], row["source"], row["type"], row["events"]) for row in counts]
    columns = "minute bigint, source string, type string, events bigint"
    table = records.sparkSession.createDataFrame(rows, columns).coalesce(1)
    return table.withColumn("minute", F.timestamp_micros("minute"))
