"""Duplicates: a table of the samples that gateways note with GATEWAY_DUPLICATE_SAMPLES, each once."""

from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.runtime import options
from pipeline.runtime.beginning import begin
from pipeline.runtime.checkpoint import default_checkpoint
from pipeline.runtime.streams import StreamPlan
from pipeline.schema import DAY, DUPLICATE_SAMPLE, DUPLICATES, by_day
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.lake import LakeFormat, lake_sink, output_of
from pipeline.sources.kafka_options import with_options
from pipeline.transforms.clean_topic import bounded_time

JOB = "duplicates"


def duplicates(
    source: options.SourceOption,
    out: Annotated[str, typer.Option("--out", metavar="PATH", help="folder of the table, or table:NAME")],
    lake_format: Annotated[
        LakeFormat, typer.Option("--format", help="format of the table")
    ] = LakeFormat.DELTA,
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
    kafka: options.KafkaOption = None,
) -> None:
    """
    Store the samples of duplicates of the topic <topic>.duplicates, one row each, by day.

    A row says where the original is (null where only the sequence of a client session is known), when the
    copy came, why, and from which library.
    """
    source = with_options(source, kafka)
    lake = output_of(out, lake_format, checkpoint)
    spark, origin = begin(JOB, source, lake, remote=remote, conf=conf)
    checkpoint = checkpoint or default_checkpoint(lake.path, f"{JOB}-{lake.format}", origin.id)
    plan = StreamPlan(JOB, source, checkpoint, once, interval, metrics_port, metrics_file)
    sink = lake_sink(lake, by_day(DUPLICATES), DAY)
    output = SinkPlan(sink, _sampled, recovers=recover, accepts_loss=accept_loss)
    stored = run_to_sink(spark, plan, origin, output, offsets_per_batch=batch_offsets)
    print(f"{stored.read:,} samples of duplicates stored in {lake}")


def _sampled(records: DataFrame) -> DataFrame:
    """Turn schema.RECORD into schema.DUPLICATES and the day; what is no sample keeps its place alone."""
    sample = F.from_json(F.col("value").cast("string"), DUPLICATE_SAMPLE)
    return records.withColumn("sample", sample).select(
        *(f"sample.{name}" for name in DUPLICATE_SAMPLE.names if name != "arrived_ms"),
        F.timestamp_millis("sample.arrived_ms").alias("arrived_at"),
        F.col("partition").alias("log_partition"),
        F.col("offset").alias("log_offset"),
        F.date_format(bounded_time(F.col("timestamp")), "yyyy-MM-dd").alias("dt"),
    )
