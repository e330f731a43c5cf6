"""Tables that have a name in a catalog, which Spark's settings configure: table:CATALOG.SCHEMA.NAME."""

from pyspark.sql import SparkSession

from pipeline.errors import PipelineError
from pipeline.sources.records import TABLE_PREFIX, quoted_table

SESSION_CATALOG = "spark_catalog"
"""The one that SCHEMA.NAME is of, unless settings say another."""


def require_catalog(spark: SparkSession, catalog: str) -> None:
    """Raise PipelineError unless a catalog of this name is configured."""
    setting = f"spark.sql.catalog.{catalog}"
    if not spark.conf.get(setting, ""):
        raise PipelineError(f"there is no catalog {catalog}: --conf {setting}=... configures it")


def is_of_session(path: str) -> bool:
    """Whether a name is one of the session's own catalog."""
    parts = path.removeprefix(TABLE_PREFIX).split(".")
    return len(parts) < 3 or parts[0] == SESSION_CATALOG


def is_in_catalog(spark: SparkSession, path: str) -> bool:
    """
    Whether a catalog has a table or view of this name.

    Raises:
        PipelineError: the catalog is not configured, or has no such schema.
    """
    parts = path.removeprefix(TABLE_PREFIX).split(".")
    if not is_of_session(path):
        require_catalog(spark, parts[0])
    if spark.catalog.tableExists(quoted_table(path)):
        return True
    schema = ".".join(parts[:-1])
    if schema and not spark.catalog.databaseExists(quoted_table(schema)):
        raise PipelineError(f"there is no schema {schema}: make it first, by CREATE SCHEMA {schema}")
    return False
