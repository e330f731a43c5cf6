"""Minute counts: counts events per minute, source and type, each once, into Postgres or a lake."""

import sys
from functools import partial
from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.beginning import begin
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.streams import StreamPlan
from pipeline.schema import DAY, MINUTE_COUNTS, by_day
from pipeline.sinks.backfill import Backfill
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.days import days_of
from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.lake import LakeSink, lake_sink
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.postgres import PostgresCounts
from pipeline.sources.kafka_options import with_options
from pipeline.sources.records import LakeSource, is_table_name, parse_source
from pipeline.transforms.clean_topic import per_minute

JOB = "minute-counts"
SHOWN_CHARS = 40
POSTGRES, PARQUET = ("postgresql://", "postgres://"), "parquet://"
TABLES = ("delta://", "iceberg://")


def minute_counts(
    source: options.SourceOption,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            envvar="PIPELINE_TO",
            help="postgresql://user:password@host/database, delta://PATH, iceberg://PATH or parquet://PATH",
        ),
    ],
    since: options.FirstDayOption = None,
    until: options.EndDayOption = None,
    checkpoint: options.CheckpointOption = None,
    recover: options.RecoverOption = False,
    accept_loss: options.AcceptLossOption = False,
    next_topic: options.NextTopicOption = False,
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
    Count events per minute of log time, source and type.

    In Postgres each batch adds to the table minute_counts, in one transaction with the ledger in
    minute_counts_ledger. In the others each batch adds rows, and readers sum up.
    """
    days = days_of(since, until, is_parquet=to.startswith(PARQUET))
    if days is not None and not to.startswith(TABLES):
        raise UsageError("days are replaced in Delta and Iceberg only")
    if to.startswith(POSTGRES) and checkpoint is None:
        raise UsageError("counts in Postgres need a --checkpoint")
    if not to.startswith((*POSTGRES, *TABLES, PARQUET)):
        raise UsageError(f"--to {to!r} is none of postgresql://, delta://, iceberg:// and parquet://")
    lake = None if to.startswith(POSTGRES) else parse_source(to)
    source = with_options(source, kafka)
    if checkpoint is None and (not isinstance(lake, LakeSource) or is_table_name(lake.path)):
        raise UsageError(f"counts in {to} need a --checkpoint")
    spark, origin = begin(JOB, source, lake, remote=remote, conf=conf)
    if checkpoint is None:
        assert isinstance(lake, LakeSource)
        checkpoint = default_checkpoint(lake.path, JOB, origin.id)
    is_table = to.startswith(TABLES)
    compute = partial(_counted, has_day=is_table)
    sink = _sink(lake) if isinstance(lake, LakeSource) else PostgresCounts(to)
    plan = StreamPlan(JOB, source, checkpoint, once, interval, metrics_port, metrics_file)
    output = SinkPlan(sink, compute, recovers=recover, accepts_loss=accept_loss, takes_next_topic=next_topic)
    if days is not None and isinstance(sink, DeltaTable | IcebergLake):
        Backfill(spark, plan, origin, output, sink, batch_offsets).replace(days)
        print(f"the days {days} of {to} are replaced")
        return
    stored = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    print(f"{stored.read:,} events counted")


def _sink(lake: LakeSource) -> LakeSink:
    if lake.format == "parquet":
        return ParquetFolder(lake.path)
    return lake_sink(lake, by_day(MINUTE_COUNTS), DAY)


def _counted(records: DataFrame, *, has_day: bool) -> DataFrame:
    """
    Count a batch in the driver, and report altered minutes, sources and types on stderr.

    The driver gets a row for each minute, source and type of the batch. They have a column `dt` on demand.
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
    table = table.withColumn("minute", F.timestamp_micros("minute"))
    return table.withColumn("dt", F.date_format("minute", "yyyy-MM-dd")) if has_day else table
