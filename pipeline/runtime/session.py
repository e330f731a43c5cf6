"""
The Spark session of a job, and all settings of Spark.

A job runs in a local Spark of its own process, in a cluster's by spark-submit (whose settings win),
or in one behind Spark Connect (`--remote sc://host`).
"""

import os
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pipeline.errors import UsageError
from pipeline.sources.embedded_log import GatewayLogSource
from pipeline.sources.kafka import KafkaLogin, KafkaSettings, java_properties
from pipeline.sources.records import (
    TABLE_PREFIX,
    KafkaSource,
    LakeSource,
    Source,
    is_table_name,
    quoted_table,
)

DEBUG_VARIABLE = "PIPELINE_DEBUG"
JARS_VARIABLE = "PIPELINE_JARS_DIR"
JARS_DIR = Path(__file__).resolve().parents[2] / "build" / "spark" / "jars"
PACKAGES = "spark.jars.packages"
POM = Path(__file__).resolve().parents[1] / "pom.xml"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
LOG_CONFIG = Path(__file__).resolve().parents[1] / "log4j2.properties"

# Ten times the JVM's own thresholds: a short job ends before its C2 compiler pays off, and the loops of a
# long job reach them anyway.
COMPILER_OPTIONS = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# The JVM's default collector spends more CPU, on shorter pauses. Spark's classes outgrow the default
# metaspace size twice in a start, with a full collection each time.
COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
COLLECTOR_CHOSEN = re.compile(r"-XX:\+Use\w+GC\b")
JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Variables in which a user may have chosen a collector, too."""

COMMON = {
    # Days, hours and minutes in the tables do not depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # The default, INT96, has no statistics, which filters need.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # State may exceed memory, and its checkpoints are small.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "true",
    # Without it, --once on the embedded log ends after the batch that a killed run left unfinished.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    # Cached data are keys and hashes, which do not compress.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # The default list has kafka, whose V1 reader needs more CPU a record.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # One task a core; each task costs milliseconds in every batch.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    # Delta's default of 50 tasks for the table's state takes longer than the batch.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The default of 10,000 tasks makes VACUUM take minutes.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.driver.memory": "2g",
}

EXTENSIONS = "spark.sql.extensions"
TABLE_FORMATS = {
    "delta": {
        EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
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
    logins: Sequence[KafkaLogin] = (),
) -> SparkSession:
    """
    Return the session a job runs in.

    Args:
        job: its name, as the cluster shows it.
        remote: address of a Spark Connect server; None for a Spark of this process.
        conf: Spark settings of the user, which win.
        formats: of the job's sources and outputs beside Parquet: kafka, delta, iceberg.
        logins: to clusters of Kafka, beside the environment's.
    """
    settings = COMMON | table_settings(formats)
    user_conf = dict(conf or {})
    builder = SparkSession.builder.appName(f"gateway-{job}")
    if remote is not None:
        builder = builder.remote(remote)
    elif not is_submitted():
        settings |= LOCAL | _local_jvm(frozenset() if PACKAGES in user_conf else formats)
        # The JVM takes the last of two options, the user's.
        user_options = with_collector(user_conf.get(JAVA_OPTIONS, ""))
        user_conf[JAVA_OPTIONS] = f"{settings[JAVA_OPTIONS]} {user_options}"
        builder = builder.master("local[*]")
    for name, value in (settings | user_conf).items():
        builder = builder.config(name, value)
    is_reader = "kafka" in formats and remote is None
    properties = java_properties([KafkaSettings.read(), *logins]) if is_reader else {}
    if properties and is_submitted():
        SparkContext._ensure_initialized()
        given = user_conf.get(EXECUTOR_OPTIONS) or SparkConf().get(EXECUTOR_OPTIONS)
        builder = builder.config(EXECUTOR_OPTIONS, with_properties(given or "", properties))
    spark = builder.getOrCreate()
    for name, value in properties.items():  # its JVM runs already
        _java_system(spark).setProperty(name, value)
    spark.dataSource.register(GatewayLogSource)
    return spark


@dataclass(frozen=True)
class IcebergTable:
    """
    A table with its name in a catalog, which Iceberg's procedures need.

    A path belongs to a catalog of its parent folder. table:CATALOG.SPACE.NAME belongs to a catalog of
    the user's, which Spark's settings configure.
    """

    path: str

    @property
    def catalog(self) -> str:
        if is_table_name(self.path):
            return self.path.removeprefix(TABLE_PREFIX).partition(".")[0]
        # A session never reads a catalog's settings again, so each folder has a catalog of its own.
        return f"archive_{zlib.crc32(self._folder.encode()):08x}"

    @property
    def name(self) -> str:
        """Its name within the catalog, in SQL."""
        if is_table_name(self.path):
            return quoted_table(self.path.partition(".")[2])
        return f"`{self.path.rstrip('/').rpartition('/')[2]}`"

    @property
    def sql_name(self) -> str:
        """Catalog and name, in SQL."""
        return f"`{self.catalog}`.{self.name}"

    def __str__(self) -> str:
        return self.path

    @property
    def conf(self) -> dict[str, str]:
        """The settings of its catalog; none if that is the user's."""
        if is_table_name(self.path):
            return {}
        prefix = f"spark.sql.catalog.{self.catalog}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "hadoop",
            # Other processes write the table, too.
            f"{prefix}.cache-enabled": "false",
            f"{prefix}.warehouse": self._folder,
        }

    @property
    def _folder(self) -> str:
        return self.path.rstrip("/").rpartition("/")[0]


def start_session(
    job: str, *places: Source | None, remote: str | None, conf: Sequence[tuple[str, str]] | None
) -> SparkSession:
    """Return the session of a job that reads or writes these places, with Spark settings of the user."""
    settings: dict[str, str] = {}
    formats: frozenset[str] = frozenset()
    logins = [each.login for each in places if isinstance(each, KafkaSource) and each.login is not None]
    for place in places:
        if isinstance(place, LakeSource) and place.format == "iceberg":
            settings |= IcebergTable(place.path).conf
        formats |= frozenset() if place is None else place.formats
    conf_of_all = settings | dict(conf or ())
    return create_session(job, remote=remote, conf=conf_of_all, formats=formats, logins=logins)


def table_settings(formats: frozenset[str]) -> dict[str, str]:
    """Return Spark's settings of table formats; a session may have the extensions of several."""
    settings: dict[str, str] = {}
    for name in sorted(formats & TABLE_FORMATS.keys()):
        given = TABLE_FORMATS[name]
        extensions = ",".join(filter(None, (settings.get(EXTENSIONS), given[EXTENSIONS])))
        settings |= given | {EXTENSIONS: extensions}
    return settings


def is_submitted() -> bool:
    """Whether spark-submit started this process, which then sets master, jars and memory."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def coordinates(formats: frozenset[str]) -> list[str]:
    """Return the Maven coordinates of the connectors that these formats need, as GROUP:NAME:VERSION."""
    prefixes = tuple(_LOCAL_JARS[name][0] for name in formats if name in _LOCAL_JARS)
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    named = (
        [each.findtext(f"m:{tag}", "", space) for tag in ("groupId", "artifactId", "version")]
        for each in ElementTree.parse(POM).iterfind("m:dependencies/m:dependency", space)
    )
    return [":".join(names) for names in named if names[1].startswith(prefixes)]


def local_jars(formats: frozenset[str]) -> list[str]:
    """
    Return the jars of `make pipeline` that these formats need.

    Raises:
        UsageError: there are none.
    """
    folder = _jars_dir()
    prefixes = tuple(prefix for name in formats for prefix in _LOCAL_JARS.get(name, ()))
    jars = sorted(str(path) for path in folder.glob("*.jar") if path.name.startswith(prefixes))
    if prefixes and not jars:
        wanted = ", ".join(sorted(formats))
        raise UsageError(
            f"no jars for {wanted} in {folder}: run `make pipeline` or set {JARS_VARIABLE}, or let "
            f"Spark fetch them: --conf {PACKAGES}={','.join(coordinates(formats))}"
        )
    return jars


def spark_home() -> Path:
    """Return the Spark home that pipeline/spark_home.py makes, beside the jars."""
    return _jars_dir().with_name("home")


def class_archive() -> Path:
    """Return the class data archive in that home."""
    return spark_home() / "classes.jsa"


def with_collector(options: str) -> str:
    """Return a JVM's options with COLLECTOR, unless the user chose another: a JVM refuses two."""
    chosen = (options, *(os.environ.get(name, "") for name in JVM_VARIABLES))
    return options if any(map(COLLECTOR_CHOSEN.search, chosen)) else f"{COLLECTOR} {options}".strip()


def with_properties(options: str, properties: Mapping[str, str]) -> str:
    """Return a JVM's options with system properties."""
    return " ".join([options, *(f"-D{name}={value}" for name, value in properties.items())]).strip()


def archive_options() -> str:
    """Return the JVM options that use the class data archive; none if there is no archive."""
    if not class_archive().exists():
        return ""
    # The JVM ignores an archive of another Java or Spark.
    return f"-Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={class_archive()}"


def _java_system(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm.java.lang.System


def _jars_dir() -> Path:
    return Path(os.environ.get(JARS_VARIABLE, JARS_DIR))


def _local_jvm(formats: frozenset[str]) -> dict[str, str]:
    # The default, "python3", may lack pyarrow and this package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    level = "error" if os.environ.get(DEBUG_VARIABLE) else "off"
    options = f"{COMPILER_OPTIONS} -Dlog4j2.configurationFile={LOG_CONFIG} -Dpipeline.log={level}"
    settings = {JAVA_OPTIONS: f"{options} {archive_options()}"}
    if (spark_home() / "bin" / "spark-submit").exists():
        os.environ.setdefault("SPARK_HOME", str(spark_home()))
    if jars := local_jars(formats):
        settings["spark.jars"] = ",".join(jars)
    return settings
