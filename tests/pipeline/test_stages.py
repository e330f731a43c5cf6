"""Claim: every job reports its first step before it asks the source and before Spark starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.runtime import session
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

CPU_S_MAX = 2.0  # up to a job's first line; half of it on a free core
LOG = "log://LOG"
JOBS = {
    "archive": ["--source", LOG, "--out", "OUT"],
    "audit": ["--source", LOG, "--engine", "spark"],
    "minute_counts": ["--source", LOG, "--to", "parquet://OUT"],
    "sessionize": ["--source", LOG, "--out", "OUT"],
    "replay": ["--source", LOG, "--gateway", "http://127.0.0.1:1", "--checkpoint", "OUT"],
    "clean": ["--source", LOG, "--to", "parquet://OUT"],
    "compact": ["--source", "delta://OUT"],
}


@pytest.mark.parametrize("name", JOBS)
def test_job_reports_its_steps_before_spark_starts(
    name: str, job_without_spark: JobRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PipelineError("Spark would start now")

    maker = RecordMaker(1)
    append_to_log(tmp_path / "log", {0: [maker.record(maker.event_of(0))]})
    monkeypatch.setattr(session, "create_session", fail)
    arguments = [
        word.replace("LOG", f"{tmp_path}/log").replace("OUT", f"{tmp_path}/out") for word in JOBS[name]
    ]

    done = job_without_spark(name, *arguments)

    *stages, last = done.stderr.splitlines()
    asked = [] if name in ("replay", "clean", "compact") else [f"asking log://{tmp_path}/log?topic=events"]
    assert [stage.partition(" s  ")[2] for stage in stages] == [*asked, "starting Spark"]
    assert all(stage.startswith(f"{name.replace('_', '-')}: ") for stage in stages)
    assert last == "pipeline: Spark would start now"


def test_first_line_comes_within_two_seconds_of_work(tmp_path: Path) -> None:
    """Of the processor's time, which is the same on a crowded machine."""
    command = [sys.executable, "-m", "pipeline", "archive", "--source", "log:///nowhere"]
    with subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        output = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)

    assert process.returncode == 2
    assert output.splitlines()[0].endswith(" s  asking log:///nowhere?topic=events")
    assert used.ru_utime + used.ru_stime < CPU_S_MAX
