"""Tables: stores each event once as a row of the table of its type, and of the table of its name."""

from typing import Annotated

import typer
from pyspark.sql import DataFrame

from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.beginning import begin
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.streams import StreamPlan
from pipeline.schema import TABLE_COLUMNS
from pipeline.sinks.backfill import Backfill
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.days import days_of
from pipeline.sinks.lake import LakeFormat, output_of
from pipeline.sinks.layout import layout_of
from pipeline.sinks.table_store import TableStore
from pipeline.sinks.tables import TableLimits, TablesSink
from pipeline.sources.kafka_options import with_options
from pipeline.sources.records import LakeSource
from pipeline.transforms.table_layout import COLUMNS_MAX, TABLES_MAX

JOB = "tables"


def tables(
    source: options.SourceOption,
    out: Annotated[
        str, typer.Option("--out", metavar="PATH", help="folder of the tables, or table:CATALOG.SCHEMA")
    ],
    lake_format: Annotated[
        LakeFormat, typer.Option("--format", help="format of the tables; Parquet has no users and accounts")
    ] = LakeFormat.DELTA,
    tables_max: Annotated[
        int, typer.Option("--tables-max", min=0, help="largest number of tables of event names")
    ] = TABLES_MAX,
    columns_max: Annotated[
        int,
        typer.Option(
            "--columns-max", min=0, help="largest number of columns of properties and context in each"
        ),
    ] = COLUMNS_MAX,
    variant: Annotated[
        bool, typer.Option("--variant", help="store all properties or traits as a VARIANT column, too")
    ] = False,
    partition_by: options.PartitionByOption = None,
    cluster_by: options.ClusterByOption = None,
    table_property: options.TablePropertyOption = None,
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
    Store each event once with typed columns: in tracks, pages, screens, identifies, groups or aliases, and a
    track event also in the table of its name; users and accounts have the latest traits.

    May be killed and started again at any time: the ledgers of the tables determine where each continues.
    """
    source = with_options(source, kafka)
    lake = output_of(out, lake_format, checkpoint, is_named="a catalog's schema")
    if variant and lake_format is LakeFormat.PARQUET:
        raise UsageError("--variant needs --format delta or iceberg")
    layout = layout_of(
        partition_by, cluster_by, table_property, lake_format=lake.format, columns=TABLE_COLUMNS
    )
    days = days_of(since, until, is_parquet=lake_format is LakeFormat.PARQUET)
    store = TableStore(lake, layout)
    spark, origin = begin(JOB, source, LakeSource(lake.format, store.path(JOB)), remote=remote, conf=conf)
    sink = TablesSink(store, TableLimits(tables_max, columns_max), has_variants=variant)
    checkpoint = checkpoint or default_checkpoint(lake.path, f"{JOB}-{lake.format}", origin.id)
    plan = StreamPlan(JOB, source, checkpoint, once, interval, metrics_port, metrics_file)
    output = SinkPlan(
        sink, _unchanged, recovers=recover, accepts_loss=accept_loss, takes_next_topic=next_topic
    )
    if days is not None:
        Backfill(spark, plan, origin, output, sink, batch_offsets).replace(days)
        print(f"the days {days} of the tables of {lake} are replaced")
        return
    if next_topic and not accept_loss:
        sink.check_whole(spark, origin)
    stored = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    print(f"{stored.read:,} events are in the tables of {lake}")


def _unchanged(records: DataFrame) -> DataFrame:
    return records
