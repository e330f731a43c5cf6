"""Claim: every job reports its first step before it asks the source and before Spark starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.runtime import session
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

LARGE_LIBRARIES = {"pandas", "delta", "deltalake", "pyiceberg", "duckdb", "fastapi"}
LOG = "log://LOG"
KEY_FILE = __file__
JOBS = {
    "archive": ["--source", LOG, "--out", "OUT"],
    "audit": ["--source", LOG, "--engine", "spark"],
    "minute_counts": ["--source", LOG, "--to", "parquet://OUT"],
    "sessionize": ["--source", LOG, "--out", "OUT"],
    "replay": ["--source", LOG, "--gateway", "http://127.0.0.1:1", "--checkpoint", "OUT"],
    "clean": ["--source", LOG, "--to", "parquet://OUT"],
    "compact": ["--source", "delta://OUT"],
    "erase": ["--from", "delta://OUT", "--erasures", "OUT", "--erasure-key-file", KEY_FILE],
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
    asked = (
        []
        if name in ("replay", "clean", "compact", "erase")
        else [f"asking log://{tmp_path}/log?topic=events"]
    )
    assert [stage.partition(" s  ")[2] for stage in stages] == [*asked, "starting Spark"]
    assert all(stage.startswith(f"{name.replace('_', '-')}: ") for stage in stages)
    assert last == "pipeline: Spark would start now"


def test_first_line_waits_for_no_large_library(tmp_path: Path) -> None:
    """pandas alone takes as long as all else that a job imports."""
    command = [sys.executable, "-X", "importtime", "-m", "pipeline", "archive", "--source", "log:///nowhere"]
    done = subprocess.run([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 2
    before, first_line, _ = done.stderr.partition(" s  asking log:///nowhere?topic=events")
    imported = {line.rpartition("|")[2].strip() for line in before.splitlines()}
    assert first_line
    assert "pipeline.jobs.archive" in imported
    assert imported & LARGE_LIBRARIES == set()
