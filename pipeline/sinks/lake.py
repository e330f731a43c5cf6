"""
The archive's sink: Parquet files, a Delta or an Iceberg table, by day and hour of the log time.

Exactly once by each format's own transaction: Parquet lists a batch's files in `_spark_metadata`
before they count, Delta and Iceberg commit the batch's number with its files. So read the folder
through Spark, or take only the files that `_spark_metadata` lists.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipeline.runtime import IcebergTable
from pipeline.schema import ARCHIVE
from pipeline.sources import LakeSource

FOLDERS = ("dt", "hr")


def lake_writer(archive: DataFrame, out: LakeSource) -> DataStreamWriter:
    """Return the writer of a stream in schema.ARCHIVE."""
    writer = archive.writeStream.format(out.format).option("path", out.path)
    if out.format == "iceberg":
        # Otherwise each batch would have to be sorted by day and hour first.
        return writer.option("fanout-enabled", "true")
    return writer.partitionBy(*FOLDERS)


def create_table(spark: SparkSession, table: IcebergTable) -> None:
    """Create an Iceberg table that is not there yet; the other formats create themselves."""
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in ARCHIVE)
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.catalog}.`{table.name}` ({columns}) "
        f"USING iceberg PARTITIONED BY ({', '.join(FOLDERS)})"
    )
