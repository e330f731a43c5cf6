"""Compact: an archive's many small files become few large ones."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime import IcebergTable, create_session, options
from pipeline.sinks import FOLDERS
from pipeline.sources import LakeSource, read_lake

ROWS_PER_FILE_MAX = 2_000_000  # about 250 MB of events


def compact(
    source: options.SourceOption,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="folder of the compacted Parquet archive")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="DAY", help="days before this one; default today, UTC")
    ] = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Merge the small files of closed days.

    Delta and Iceberg tables are compacted in place, by their own commands. The files of a Parquet
    archive belong to its streaming job, so they stay, and --out gets a copy with one file an hour;
    running again replaces the same hours.
    """
    if not isinstance(source, LakeSource):
        raise UsageError(f"{source} is no archive")
    day = before or datetime.now(UTC).strftime("%Y-%m-%d")
    table = IcebergTable(source.path)
    settings = table.conf if source.format == "iceberg" else {}
    spark = create_session("compact", remote=remote, conf=settings | dict(conf or []), formats=source.formats)
    if source.format == "parquet":
        if out is None:
            raise UsageError("a Parquet archive is compacted into another folder: name it with --out")
        _rewrite(spark, source, out, day)
    elif source.format == "delta":
        spark.sql(f"OPTIMIZE delta.`{source.path}` WHERE dt < '{day}'")
    else:
        spark.sql(
            f"CALL {table.catalog}.system.rewrite_data_files(table => '{table.name}', "
            f"where => 'dt < \"{day}\"', options => map('min-input-files', '2'))"
        )
    print(f"{source} is compacted up to {day}")


def _rewrite(spark: SparkSession, source: LakeSource, out: str, day: str) -> None:
    closed = read_lake(spark, source).where(F.col("dt") < day)
    ordered = closed.repartition(*FOLDERS).sortWithinPartitions(*FOLDERS, "partition", "offset")
    writer = ordered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.option("maxRecordsPerFile", ROWS_PER_FILE_MAX).partitionBy(*FOLDERS).parquet(out)
    before, after = (_hours(df) for df in (closed, read_lake(spark, LakeSource("parquet", out))))
    if any(after.get(hour) != held for hour, held in before.items()):
        raise PipelineError(f"{out} does not hold what {source} holds: do not use it")


def _hours(archive: DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    """Return rows and a checksum of each hour."""
    place = F.xxhash64("partition", "offset", "message_id", "value")
    rows = archive.groupBy(*FOLDERS).agg(F.count("*"), F.bit_xor(place)).collect()
    return {(row[0], row[1]): (row[2], row[3]) for row in rows}
