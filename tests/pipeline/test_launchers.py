"""Claim: the same jobs run under spark-submit and on a Spark Connect server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.runtime.session import JAVA_OPTIONS, TABLE_FORMATS, archive_options, local_jars, spark_home
from tests.support.jobs import QUICK_JVM, START_TIMEOUT_S, as_options
from tests.support.logs import append_to_log
from tests.support.processes import HOST, free_port, is_free, kill_when_parent_dies
from tests.support.records import RecordMaker

SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
MAIN = Path(__file__).resolve().parents[2] / "pipeline" / "__main__.py"
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ENVIRONMENT = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
if archive := archive_options():  # Spark as it is installed, quicker to start
    ENVIRONMENT["SPARK_HOME"] = str(spark_home())
QUICK = {"spark.ui.enabled": "false", JAVA_OPTIONS: f"{QUICK_JVM} {archive}"}
LOCAL = ("--master", "local[2]", *as_options(QUICK))


@pytest.fixture
def log_source(tmp_path: Path) -> str:
    """A log of forty events."""
    maker = RecordMaker(2)
    append_to_log(tmp_path / "log", maker.lanes(maker.event(f"id-{n}") for n in range(40)))
    return f"log://{tmp_path}/log"


@pytest.fixture
def connect_url(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server of the test's own."""
    port = free_port()
    binding = "spark.connect.grpc.binding"
    command: list[str | Path] = [SPARK_SUBMIT, "--class", CONNECT_SERVER, *LOCAL]
    command += ["--jars", ",".join(local_jars(frozenset({"delta"})))]
    bound = {f"{binding}.port": str(port), f"{binding}.address": HOST}
    command += [*as_options(TABLE_FORMATS["delta"] | bound), "spark-internal"]
    with (tmp_path / "connect.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    watcher = kill_when_parent_dies(server.pid)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while is_free(port):
            assert server.poll() is None, (tmp_path / "connect.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"sc://{HOST}:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        watcher.kill()
        watcher.communicate()


@pytest.mark.slow
def test_audit_runs_under_spark_submit(log_source: str) -> None:
    done = run(SPARK_SUBMIT, *LOCAL, MAIN, "audit", "--source", log_source)

    assert done.returncode == 0, done
    assert b"\n40 records in " in done.stdout


@pytest.mark.slow
def test_jobs_run_on_spark_connect(log_source: str, connect_url: str, tmp_path: Path) -> None:
    out = tmp_path / "events"
    options = ("--remote", connect_url, "--source")

    archived = run(sys.executable, "-m", "pipeline", "archive", *options, log_source, "--out", out, "--once")
    audited = run(sys.executable, "-m", "pipeline", "audit", *options, f"delta://{out}")

    assert archived.returncode == 0, archived
    assert audited.returncode == 0, audited
    assert b"\n40 records in " in audited.stdout


def run(*command: object) -> subprocess.CompletedProcess[bytes]:
    words = [str(word) for word in command]
    return subprocess.run(
        words,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
