"""Minute counts: events per minute, source and type, into Postgres or Parquet, every event once."""

import sys
from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.session import create_session
from pipeline.runtime.stages import stage_teller
from pipeline.runtime.streams import StreamPlan
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sinks.stored import Storing, run_stored
from pipeline.sources.origin import origin_of
from pipeline.transforms.clean_topic import per_minute_named

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
    tell = stage_teller(JOB)
    tell(f"asking {source}")
    origin = origin_of(source)
    checkpoint = checkpoint or default_checkpoint(path, JOB, origin.id)
    tell("starting Spark")
    spark = create_session(JOB, remote=remote, conf=dict(conf or []), formats=source.formats)
    tell(f"reading {source}")
    sink = ParquetFolder(path) if to.startswith(PARQUET) else PostgresCounts(to)
    plan = StreamPlan(JOB, source, checkpoint, once, interval, metrics_port)
    storing = Storing(sink, _counted, recovers=recover, accepts_loss=accept_loss)
    rows = run_stored(spark, plan, origin, storing, offsets_per_batch=batch_offsets)
    print(f"{rows:,} events counted")


def _counted(records: DataFrame) -> DataFrame:
    """
    Count a batch, and name on stderr what is counted under a stand-in.

    As many rows as the batch has minutes, sources and types: the driver can hold them.
    """
    counts = records.transform(per_minute_named).withColumn("minute", F.unix_micros("minute")).collect()
    for row in counts:
        if row["altered"]:
            place = f"partition {row['first_altered'][0]} offset {row['first_altered'][1]}"
            name = f"source {row['source'][:SHOWN_CHARS]!r} type {row['type'][:SHOWN_CHARS]!r}"
            print(f"{JOB}: {row['altered']:,} events, one is {place}, count as {name}", file=sys.stderr)
    held = [(row["minute"], row["source"], row["type"], row["events"]) for row in counts]
    columns = "minute bigint, source string, type string, events bigint"
    table = records.sparkSession.createDataFrame(held, columns).coalesce(1)
    return table.withColumn("minute", F.timestamp_micros("minute"))
