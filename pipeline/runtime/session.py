"""
The Spark session of a job: the one place where Spark is configured.

A job may be started three ways and does not notice: plain Python (a local Spark in this process),
spark-submit (the cluster's Spark, whose settings win), or Spark Connect (`--remote sc://host`).
"""

import os
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.embedded_log import GatewayLogSource
from pipeline.errors import UsageError
from pipeline.sources.records import NAMED, LakeSource, Source, is_named, quoted

DEBUG_VARIABLE = "PIPELINE_DEBUG"
JARS_VARIABLE = "PIPELINE_JARS_DIR"
JARS_DIR = Path(__file__).resolve().parents[2] / "build" / "spark" / "jars"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG_CONFIG = Path(__file__).resolve().parents[1] / "log4j2.properties"

# The JVM's last compiler takes a fifth of a short job's CPU, for code that hardly runs once it is done.
# These are ten times its own thresholds: the loops of a long job, a round a row, get there all the same.
PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# The JVM's own choice spends more of the processor, on shorter pauses. This one looks through the whole heap
# whenever Spark's classes outgrow what is expected of them: twice in a start, where that is left at 21 MB.
COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
COLLECTOR_CHOSEN = re.compile(r"-XX:\+Use\w+GC\b")
JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where else a user may have chosen one."""

COMMON = {
    # Days and hours of the archive, and minutes of the counts, are the same wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is a type of its own, without the statistics that filters need.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # State beyond memory, and small checkpoints of it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "true",
    # Without it, --once on the embedded log ends after the batch that a killed run had begun.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    # What is kept for a second look is keys and hashes, which trying to compress only makes dear.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Spark's own list has kafka, too: its older reader, which takes more of the processor a record.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # One machine: a task a core is enough, and each one costs milliseconds in every batch.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    # Delta parts what it knows of a table into 50 otherwise, whose tasks take longer than the batch.
    "spark.databricks.delta.snapshotPartitions": "2",
    # And VACUUM looks for files in as many tasks as this says, 10,000 otherwise: two minutes of CPU.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.driver.memory": "2g",
}

TABLE_FORMATS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    },
}

_LOCAL_JARS = {
    "kafka": ("spark-sql-kafka", "kafka-clients", "spark-token-provider", "commons-pool2"),
    "delta": ("delta-",),
    "iceberg": ("iceberg-",),
}


def create_session(
    job: str,
    *,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    formats: frozenset[str] = frozenset(),
) -> SparkSession:
    """
    Return the session a job runs in.

    Args:
        job: its name, as the cluster shows it.
        remote: address of a Spark Connect server; None for a Spark of this process.
        conf: Spark settings of the user's, which win over everything here.
        formats: what the job reads or writes beside Parquet: kafka, delta, iceberg.
    """
    settings = dict(COMMON)
    for name in sorted(formats & TABLE_FORMATS.keys()):
        settings |= TABLE_FORMATS[name]
    told = dict(conf or {})
    builder = SparkSession.builder.appName(f"gateway-{job}")
    if remote is not None:
        builder = builder.remote(remote)
    elif not is_submitted():
        settings |= LOCAL | _local_jvm(formats)
        # The JVM takes the last of two: the user's, which must not undo what else is said there.
        told[JAVA_OPTIONS] = f"{settings[JAVA_OPTIONS]} {with_collector(told.get(JAVA_OPTIONS, ''))}"
        builder = builder.master("local[*]")
    for name, value in (settings | told).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(GatewayLogSource)
    return spark


@dataclass(frozen=True)
class IcebergTable:
    """
    A table by its name in a catalog, for what Iceberg does only by name.

    One that is told by its path gets a catalog of the folder that holds it; one of the user's own
    catalog is told as table:CATALOG.SPACE.NAME, and Spark's settings say where that is.
    """

    path: str

    @property
    def catalog(self) -> str:
        if is_named(self.path):
            return self.path.removeprefix(NAMED).partition(".")[0]
        # A session keeps what it first knew of a catalog, so each folder has a name of its own.
        return f"archive_{zlib.crc32(self._folder.encode()):08x}"

    @property
    def name(self) -> str:
        """What the catalog calls it, as SQL writes that."""
        if is_named(self.path):
            return quoted(self.path.partition(".")[2])
        return f"`{self.path.rstrip('/').rpartition('/')[2]}`"

    @property
    def sql_name(self) -> str:
        """Catalog and name as SQL writes them."""
        return f"`{self.catalog}`.{self.name}"

    def __str__(self) -> str:
        return self.path

    @property
    def conf(self) -> dict[str, str]:
        """What the session must be told."""
        if is_named(self.path):
            return {}
        prefix = f"spark.sql.catalog.{self.catalog}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "hadoop",
            # Other processes write, too.
            f"{prefix}.cache-enabled": "false",
            f"{prefix}.warehouse": self._folder,
        }

    @property
    def _folder(self) -> str:
        return self.path.rstrip("/").rpartition("/")[0]


def catalog_conf(source: Source) -> dict[str, str]:
    """Return what a session must be told to find a source by name; nothing for most."""
    if isinstance(source, LakeSource) and source.format == "iceberg":
        return IcebergTable(source.path).conf
    return {}


def is_submitted() -> bool:
    """Whether spark-submit started this process: then master, jars and memory are its affair."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def local_jars(formats: frozenset[str]) -> list[str]:
    """
    Return the jars of `make pipeline` that these formats need.

    Raises:
        UsageError: they are not there.
    """
    folder = _jars_dir()
    prefixes = tuple(prefix for name in formats for prefix in _LOCAL_JARS.get(name, ()))
    found = sorted(str(path) for path in folder.glob("*.jar") if path.name.startswith(prefixes))
    if prefixes and not found:
        raise UsageError(
            f"no jars for {', '.join(sorted(formats))} in {folder}: "
            f"run `make pipeline` or set {JARS_VARIABLE}"
        )
    return found


def spark_home() -> Path:
    """Return where pipeline/spark_home.py lays out what a local Spark starts from: beside the jars."""
    return _jars_dir().with_name("home")


def class_archive() -> Path:
    """Return where that leaves Spark's classes."""
    return spark_home() / "classes.jsa"


def with_collector(options: str) -> str:
    """Return a JVM's options with COLLECTOR, unless the user chose one: told of two, a JVM does not start."""
    chosen = (options, *(os.environ.get(name, "") for name in JVM_VARIABLES))
    return options if any(map(COLLECTOR_CHOSEN.search, chosen)) else f"{COLLECTOR} {options}".strip()


def archive_options() -> str:
    """Return what has a JVM take Spark's classes from their archive; nothing where there is none."""
    if not class_archive().exists():
        return ""
    # One of another JVM or Spark is no use, and passed over.
    return f"-Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={class_archive()}"


def _jars_dir() -> Path:
    return Path(os.environ.get(JARS_VARIABLE, JARS_DIR))


def _local_jvm(formats: frozenset[str]) -> dict[str, str]:
    # Spark starts "python3" otherwise, which need not have pyarrow or this package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    level = "error" if os.environ.get(DEBUG_VARIABLE) else "off"
    options = f"{PATIENT_COMPILER} -Dlog4j2.configurationFile={LOG_CONFIG} -Dpipeline.log={level}"
    settings = {JAVA_OPTIONS: f"{options} {archive_options()}"}
    if (spark_home() / "bin" / "spark-submit").exists():
        os.environ.setdefault("SPARK_HOME", str(spark_home()))
    if jars := local_jars(formats):
        settings["spark.jars"] = ",".join(jars)
    return settings
