"""Replay: posts stored events to a gateway again, which stores those that it does not have."""

from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.runtime import options
from pipeline.runtime.erasures import leave_out_erased
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.runtime.streams import StreamPlan, run_stream
from pipeline.sinks.publisher import GatewayTarget, PostedCounts, publish
from pipeline.sources.kafka_options import with_options
from pipeline.sources.records import Selection, stream_records
from pipeline.transforms.clean_topic import decoded

SESSION_IN_HEADER = (35, 56)
"""Position, from 1, and length of the fields of `gw` that hold an event's place in its client session."""


class BatchPoster:
    """Posts each batch of records and sums up the answers; the function of `foreachBatch`."""

    def __init__(self, target: GatewayTarget) -> None:
        self._target = target
        self.counts = PostedCounts()

    def __call__(self, records: DataFrame, _batch_id: int) -> None:
        with_fields = records.transform(leave_out_erased).transform(decoded)
        session = F.when(F.col("client_hash").isNotNull(), F.substring("gw", *SESSION_IN_HEADER))
        self.counts += publish(with_fields.withColumn("session", session), self._target)


def replay(
    source: options.SourceOption,
    gateway: Annotated[
        str,
        typer.Option("--gateway", metavar="URL", envvar="PIPELINE_GATEWAY", help="URL of its ingest port"),
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="PATH", envvar="PIPELINE_CHECKPOINT", help="folder of Spark's checkpoint"
        ),
    ],
    write_key: options.WriteKeyOption = None,
    rate: options.RateOption = None,
    connections: options.ConnectionsOption = 4,
    since: options.SinceOption = None,
    until: options.UntilOption = None,
    from_offsets: options.FromOffsetsOption = None,
    to_offsets: options.ToOffsetsOption = None,
    batch_offsets: options.BatchOption = 50_000,
    metrics_port: options.MetricsPortOption = None,
    metrics_file: options.MetricsFileOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
    kafka: options.KafkaOption = None,
) -> None:
    """
    Post stored events to a gateway: it stores those that it does not have; the others are duplicates.

    May be killed and started again at any time. Events of client sessions keep their sequences.
    """
    source = with_options(source, kafka)
    log_progress = progress_logger("replay")
    log_progress("starting Spark")
    spark = start_session("replay", source, remote=remote, conf=conf)
    log_progress(f"reading {source}")
    selection = Selection(since, until, from_offsets, to_offsets)
    records = stream_records(
        spark, source, job="replay", offsets_per_batch=batch_offsets, selection=selection
    )
    poster = BatchPoster(GatewayTarget(gateway, dict(write_key or []), rate, connections))
    plan = StreamPlan("replay", source, checkpoint, True, options.INTERVAL, metrics_port, metrics_file)
    run_stream(records.writeStream.foreachBatch(poster), plan)
    print(poster.counts)
