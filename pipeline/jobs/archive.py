"""Archive: stores every record of a topic once, by day and hour of its log time."""

from typing import Annotated

import typer

from pipeline.runtime import options
from pipeline.runtime.beginning import begin
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.streams import StreamPlan
from pipeline.schema import ARCHIVE, ARCHIVE_VERSION
from pipeline.sinks.backfill import Backfill
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.days import days_of
from pipeline.sinks.lake import LakeFormat, lake_sink, output_of
from pipeline.sinks.layout import layout_of
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.kafka_options import with_options
from pipeline.transforms.clean_topic import archived


def archive(
    source: options.SourceOption,
    out: Annotated[str, typer.Option("--out", metavar="PATH", help="folder of the archive, or table:NAME")],
    lake_format: Annotated[
        LakeFormat, typer.Option("--format", help="format of the archive")
    ] = LakeFormat.DELTA,
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
    Store every record of a topic once, as a Delta or Iceberg table or as Parquet, in folders by day and hour.

    May be killed and started again at any time: the archive's own ledger determines where it continues.
    """
    source = with_options(source, kafka)
    lake = output_of(out, lake_format, checkpoint)
    layout = layout_of(
        partition_by, cluster_by, table_property, lake_format=lake.format, columns=ARCHIVE.names
    )
    days = days_of(since, until, is_parquet=lake_format is LakeFormat.PARQUET)
    spark, origin = begin("archive", source, lake, remote=remote, conf=conf)
    sink = lake_sink(lake, layout=layout)
    checkpoint = checkpoint or default_checkpoint(lake.path, f"archive-{lake.format}", origin.id)
    plan = StreamPlan("archive", source, checkpoint, once, interval, metrics_port, metrics_file)
    output = SinkPlan(
        sink,
        archived,
        recovers=recover,
        accepts_loss=accept_loss,
        takes_next_topic=next_topic,
        columns_version=ARCHIVE_VERSION,
    )
    if days is not None and not isinstance(sink, ParquetFolder):
        Backfill(spark, plan, origin, output, sink, batch_offsets).replace(days)
        print(f"the days {days} of {lake} are replaced")
        return
    stored = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    print(f"{stored.read:,} records archived in {lake}")
