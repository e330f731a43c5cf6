"""Claim: manifests are held against real definitions, and compose.yaml against Compose's own loader."""

import copy
import subprocess
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.chart.helm import ROOT, only, render, render_pipeline
from tests.deploy.chart.schemas import validate
from tests.deploy.chart.test_pipeline import MATRIX as PIPELINE_MATRIX
from tests.deploy.chart.test_templates import MATRIX, VERSIONS

REFUSED = (jsonschema.ValidationError, kubernetes_validate.ValidationError)
DEPLOY = ROOT / "deploy"
COMPOSE = ROOT / "build" / "go" / "compose"


def manifest_of(kind: str) -> dict[str, Any]:
    if kind == "SparkApplication":
        return only(render_pipeline(**PIPELINE_MATRIX["kubeflow"]), kind)
    profiles, settings = MATRIX["http route"]
    return only(render(*profiles, **settings), kind)


@pytest.mark.parametrize(
    "kind", ["ServiceMonitor", "PrometheusRule", "HTTPRoute", "SparkApplication", "StatefulSet"]
)
def test_fields_that_nobody_knows_and_values_of_another_type_are_refused(kind: str) -> None:
    good = manifest_of(kind)
    validate(good, VERSIONS[-1])
    unknown = copy.deepcopy(good)
    unknown["spec"]["unheardOf"] = 1
    with pytest.raises(REFUSED, match="unheardOf"):
        validate(unknown, VERSIONS[-1])
    with pytest.raises(REFUSED):
        validate(good | {"spec": "text"}, VERSIONS[-1])


def compose(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMPOSE, "-"], input=text, cwd=DEPLOY, capture_output=True, text=True, timeout=60, check=False
    )


def test_compose_takes_the_file() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    done = compose(text)
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout)["services"].keys() == yaml.safe_load(text)["services"].keys()
    done = compose(text.replace("healthcheck:", "health_check:"))
    assert done.returncode != 0
    assert "health_check" in done.stderr
