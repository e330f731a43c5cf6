"""Fixtures of the Spark tests: one session for the whole run, and jobs started in it."""

import gc
import os
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.cli import main
from pipeline.runtime.session import JAVA_OPTIONS, LOG_CONFIG, create_session, local_jars
from tests.support import s3
from tests.support.jobs import INTERPRETED, QUICK_JVM

HERE = Path(__file__).parent
FORMATS = frozenset({"kafka", "delta", "iceberg"})
STORE_JARS = Path(__file__).resolve().parents[2] / "build" / "spark" / "test-jars"

# pandas on Spark, which assertDataFrameEqual loads, warns unless this is set before Spark starts.
os.environ["PYARROW_IGNORE_TIMEZONE"] = "1"

# With the quick compiler alone the JVM's default is 48 MB of code, and once they are full it throws away and
# compiles anew: all tests after the first few minutes took three times as long.
LONG_JVM = f"{QUICK_JVM} -XX:ReservedCodeCacheSize=240m -Xshare:auto"

TEST_CONF = INTERPRETED | {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": (
        "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    ),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


# Spark leaves the sockets of its results to the garbage collector.
LEFT_SOCKETS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            for warning in LEFT_SOCKETS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.path.is_relative_to(HERE):
        begin_anew_with_the_jvm()
    return report


def begin_anew_with_the_jvm() -> None:
    """
    Close the connection to Spark; the next call opens another.

    A test whose time is over in the middle of a call leaves the answer there, and each call of all later
    tests would take that of the one before for its own.
    """
    gateway: Any = SparkContext._gateway
    connection = gateway and gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()


@pytest.fixture(autouse=True)
def _sockets_closed() -> Iterator[None]:
    """Collect what Spark left, so that it is not found in the middle of another test."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


class Done(NamedTuple):
    """What a job left behind."""

    exit_code: int
    stdout: str
    stderr: str


class JobRunner(Protocol):
    """Runs `python -m pipeline` with these arguments, in the session of the tests."""

    def __call__(self, *arguments: object) -> Done: ...


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The run's session; it knows every source and format."""
    folder = tmp_path_factory.mktemp("spark")
    jars = [*local_jars(FORMATS), *map(str, sorted(STORE_JARS.glob("*.jar")))]
    conf = (
        TEST_CONF
        | s3.CONF
        | {
            "spark.jars": ",".join(jars),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            JAVA_OPTIONS: (
                f"{LONG_JVM} -Dlog4j2.configurationFile={LOG_CONFIG} -Dderby.system.home={folder}"
            ),
        }
    )
    session = create_session("tests", conf=conf, formats=FORMATS)
    yield session
    session.stop()


@pytest.fixture
def job(spark: SparkSession, job_without_spark: JobRunner) -> JobRunner:
    """A function that runs one job to its end, in the session of the tests."""
    return job_without_spark


@pytest.fixture
def job_without_spark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> JobRunner:
    """A function that runs one job to its end, which must not come to need a session."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    monkeypatch.setenv("COLUMNS", "200")
    return run
