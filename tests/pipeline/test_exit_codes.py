"""
Claim: 1 means violated and nothing else; no verdict is 2 and one sentence with the reason, without a
stack of Python or Java unless --debug is given.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline import cli
from tests.pipeline.conftest import JobRunner

JAVA = """An error occurred while calling o45.load.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2844)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.util.concurrent.ExecutionException: outer
\t... 14 more
Caused by: java.net.UnknownHostException: no such host
\tat java.base/java.net.InetAddress.getAllByName(InetAddress.java:1)
\t... 12 more
"""


PROXY = """[STREAM_FAILED] Query [id = 5] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
RuntimeError: the disk is gone
	at py4j.Protocol.getReturnValue(Protocol.java:476)
"""


def test_javas_failure_is_told_with_its_cause_and_without_its_stack() -> None:
    assert cli._sentence(Py4JError(JAVA)) == (
        "org.apache.spark.SparkException: Job aborted due to stage failure: "
        "java.net.UnknownHostException: no such host"
    )


def test_failure_of_our_own_within_spark_is_told_by_what_was_raised() -> None:
    assert cli._sentence(PySparkException(PROXY)) == "RuntimeError: the disk is gone (--debug shows where)"


NO_JAR = (
    "java.lang.RuntimeException: java.lang.ClassNotFoundException: "
    "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
)
NO_SCHEME = 'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3a"'


def test_missing_file_system_is_told_with_what_to_do() -> None:
    for text in (NO_JAR, NO_SCHEME):
        sentence = cli._sentence(Py4JError(f"An error occurred while calling o45.load.\n: {text}\n"))
        assert sentence.startswith("Spark has no jar of the file system ")
        assert "org.apache.hadoop:hadoop-aws" in sentence


def test_file_beside_the_checksum_of_another_one_is_told_as_that(
    job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(9).write.parquet(str(tmp_path / "lake"))
    for path in (tmp_path / "lake").glob("*.parquet"):
        path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2"))

    source, out = f"parquet://{tmp_path}/lake", f"parquet://{tmp_path}/out"
    done = job("minute_counts", "--source", source, "--to", out, "--once")

    assert done.exit_code == 2
    assert "differs from its checksum" in done.stderr.splitlines()[-1]
    assert ".crc" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_mistake_of_ours_is_no_violation(
    debug: Sequence[str],
    job_without_spark: JobRunner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PIPELINE_DEBUG", "")

    # A folder instead of a file, an error that no code expects.
    done = job_without_spark("audit", "--source", f"log://{tmp_path}", "--stats", tmp_path, *debug)

    assert done.exit_code == 2
    assert ("Traceback" in done.stderr) == bool(debug)
    assert done.stderr.splitlines()[-1].startswith("pipeline: ")


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("GATEWAY_KAFKA_SASL_MECHANISM", "NONSENSE", "GATEWAY_KAFKA_SASL_MECHANISM: Input should be 'PLAIN'"),
        ("GATEWAY_KAFKA_SECURITY_PROTOCOL", "TLS", "GATEWAY_KAFKA_SECURITY_PROTOCOL: Input should be"),
    ],
)
def test_login_that_is_not_known_is_told_in_a_sentence(
    variable: str, value: str, sentence: str, job_without_spark: JobRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    done = job_without_spark("audit", "--source", "kafka://127.0.0.1:1/events")

    assert (done.exit_code, "Traceback" in done.stderr) == (2, False)
    assert sentence in done.stderr.splitlines()[-1]


def test_report_that_cannot_be_written_is_told_before_anything_is_read(
    job_without_spark: JobRunner, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    done = job_without_spark("audit", "--source", "log://nowhere", "--report", tmp_path / "file" / "report")

    assert done.exit_code == 2
    assert f"--report {tmp_path}/file/report cannot be written: Not a directory" in done.stderr
