"""Archive: the clean topic to a lake, every record once, by day and hour of its log time."""

from enum import StrEnum
from typing import Annotated

import typer

from pipeline.runtime import IcebergTable, StreamPlan, create_session, default_checkpoint, options, run_stream
from pipeline.sinks import create_table, lake_writer
from pipeline.sources import LakeSource, stream_records
from pipeline.transforms import archived


class LakeFormat(StrEnum):
    """What an archive may be stored as."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


def archive(
    source: options.SourceOption,
    out: Annotated[str, typer.Option("--out", metavar="PATH", help="folder of the archive")],
    lake_format: Annotated[
        LakeFormat, typer.Option("--format", help="how it is stored")
    ] = LakeFormat.PARQUET,
    checkpoint: options.CheckpointOption = None,
    once: options.OnceOption = False,
    interval: options.IntervalOption = options.INTERVAL,
    batch_offsets: options.BatchOption = options.BATCH_OFFSETS,
    metrics_port: options.MetricsPortOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Store every record of a topic once, as Parquet, Delta or Iceberg, in folders by day and hour.

    May be killed and started again at any time: it goes on where its checkpoint says.
    """
    lake = LakeSource(lake_format.value, out)
    settings = IcebergTable(out).conf if lake_format is LakeFormat.ICEBERG else {}
    spark = create_session(
        "archive",
        remote=remote,
        conf=settings | dict(conf or []),
        formats=source.formats | lake.formats,
    )
    if lake_format is LakeFormat.ICEBERG:
        create_table(spark, IcebergTable(out))
    records = stream_records(spark, source, job="archive", offsets_per_batch=batch_offsets)
    plan = StreamPlan("archive", source, checkpoint or default_checkpoint(out), once, interval, metrics_port)
    rows = run_stream(lake_writer(records.transform(archived), lake), plan)
    print(f"{rows:,} records archived in {lake}")
