"""Claim: the files for operators and schedulers start a job that exists, with options that it has."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from pipeline.cli import app

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "jobs"
API_VERSIONS = {
    "spark-application.yaml": "spark.apache.org/v1",
    "sparkoperator-application.yaml": "sparkoperator.k8s.io/v1beta2",
}
SOURCE = "kafka://kafka:9092/events"


def parameters_of(words: Sequence[str]) -> dict[str, Any]:
    """Return what a job understands of its command line; fail if it has no such option."""
    commands: Any = typer.main.get_command(app)
    parameters: dict[str, Any] = (
        commands.get_command(None, words[0]).make_context(words[0], [*words[1:]]).params
    )
    return parameters


@pytest.mark.parametrize("name", API_VERSIONS)
def test_manifest_starts_a_job(name: str) -> None:
    manifest = yaml.safe_load((FOLDER / name).read_text())

    assert (manifest["apiVersion"], manifest["kind"]) == (API_VERSIONS[name], "SparkApplication")
    spec = manifest["spec"]
    parameters = parameters_of(spec["driverArgs"] if "driverArgs" in spec else spec["arguments"])
    assert str(parameters["source"]) == SOURCE
    assert parameters["checkpoint"].startswith(parameters["out"])
    assert parameters["once"] is False


def test_scheduled_archives_end_and_can_be_repeated() -> None:
    bundle = yaml.safe_load((FOLDER / "databricks.yaml").read_text())
    (task,) = bundle["resources"]["jobs"]["gateway_archive"]["tasks"]
    emr = json.loads((FOLDER / "emr-serverless.json").read_text())
    scheduled = [
        task["python_wheel_task"]["parameters"],
        emr["jobDriver"]["sparkSubmit"]["entryPointArguments"],
        *(words for words in commands() if words[0] == "archive"),
    ]
    assert len(scheduled) == 4
    for words in scheduled:
        parameters = parameters_of(words)
        assert str(parameters["source"]) == SOURCE
        assert parameters["checkpoint"].startswith(parameters["out"])
        assert parameters["once"] is True


def test_scheduled_audit_compares_the_archive_with_its_topic() -> None:
    (audit,) = (parameters_of(words) for words in commands() if words[0] == "audit")
    assert str(audit["source"]) == "delta://s3a://lake/events"
    assert str(audit["against"]) == SOURCE


def commands() -> list[list[str]]:
    """Return the arguments of every call of gateway-pipeline in the files of Airflow and Dagster."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        compile(text, path, "exec")
        joined = re.sub(r'"\n\s*"', "", text)
        found += [call.split() for call in re.findall(r'"gateway-pipeline ([^"]+)"', joined)]
    return found
