"""Claim: the operators' manifests start a job that exists, with options that it has."""

from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from pipeline.cli import app

FOLDER = Path(__file__).resolve().parents[2] / "deploy"
API_VERSIONS = {
    "spark-application.yaml": "spark.apache.org/v1",
    "sparkoperator-application.yaml": "sparkoperator.k8s.io/v1beta2",
}


@pytest.mark.parametrize("name", API_VERSIONS)
def test_manifest_starts_a_job(name: str) -> None:
    manifest = yaml.safe_load((FOLDER / name).read_text())

    assert (manifest["apiVersion"], manifest["kind"]) == (API_VERSIONS[name], "SparkApplication")
    words = arguments_of(manifest["spec"])
    commands: Any = typer.main.get_command(app)
    job = commands.get_command(None, words[0])
    parameters = job.make_context(words[0], words[1:]).params
    assert str(parameters["source"]) == "kafka://kafka:9092/events"
    assert parameters["checkpoint"].startswith(parameters["out"])
    assert parameters["once"] is False


def arguments_of(spec: dict[str, Any]) -> list[str]:
    words: list[str] = spec["driverArgs"] if "driverArgs" in spec else spec["arguments"]
    return words
