"""Replay: stored events once more through a gateway, which stores those it does not have."""

from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.runtime import options
from pipeline.runtime.session import create_session
from pipeline.runtime.stages import stage_teller
from pipeline.runtime.streams import StreamPlan, run_stream
from pipeline.sinks.publisher import Target, Verdicts, publish
from pipeline.sources.records import stream_records
from pipeline.transforms.clean_topic import decoded

SESSION_IN_HEADER = (35, 56)
"""First byte, from 1, and number of those that tell an event's place in its client session."""


class Replay:
    """Posts each batch of records and remembers what the gateway said; what `foreachBatch` calls."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.verdicts = Verdicts()

    def __call__(self, records: DataFrame, _batch_id: int) -> None:
        """Post one batch."""
        told = records.transform(decoded)
        session = F.when(F.col("client_hash").isNotNull(), F.substring("gw", *SESSION_IN_HEADER))
        self.verdicts += publish(told.withColumn("session", session), self._target)


def replay(
    source: options.SourceOption,
    gateway: Annotated[
        str, typer.Option("--gateway", metavar="URL", envvar="PIPELINE_GATEWAY", help="its ingest port")
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="PATH", envvar="PIPELINE_CHECKPOINT", help="to resume from")
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
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Post stored events to a gateway: those it has are duplicates there, the others are stored.

    May be killed and started again at any time. Events of client sessions keep their places in them.
    """
    tell = stage_teller("replay")
    tell("starting Spark")
    spark = create_session("replay", remote=remote, conf=dict(conf or []), formats=source.formats)
    tell(f"reading {source}")
    span = options.span_of(since, until, from_offsets, to_offsets)
    records = stream_records(spark, source, job="replay", offsets_per_batch=batch_offsets, span=span)
    sink = Replay(Target(gateway, dict(write_key or []), rate, connections))
    plan = StreamPlan("replay", source, checkpoint, True, options.INTERVAL, metrics_port)
    run_stream(records.writeStream.foreachBatch(sink), plan)
    print(sink.verdicts)
