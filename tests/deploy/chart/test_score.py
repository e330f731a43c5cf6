"""Claim: kube-score finds nothing in what the charts render but what is so on purpose."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.chart.helm import ROOT, render, render_pipeline
from tests.deploy.chart.test_pipeline import MATRIX as PIPELINE_MATRIX
from tests.deploy.chart.test_templates import MATRIX

KUBE_SCORE = ROOT / "build" / "go" / "kube-score"
FINDING = re.compile(r"\[(?:CRITICAL|WARNING)\] (?P<object>\S+) (?P<kind>\S+): (?:\(\S+\) )?(?P<said>.*)")

ON_PURPOSE = {
    "CPU limit is not set": "a limit throttles bursts; the request says what is its share",
    "ImagePullPolicy is not set to Always": "an image is named by version or digest, and never changes",
    "Ephemeral Storage limit is not set": "only logs are written there, and kubelets rotate them",
    "Ephemeral Storage request is not set": "likewise",
    "StatefulSet does not have a host podAntiAffinity set": "topologySpreadConstraints spread the pods",
}
LEFT_TO_OPENSHIFT = {
    "The container is running with a low user ID": "the namespace's range of users is used",
    "The container running with a low group ID": "likewise",
}
NO_EGRESS = "The pod does not have a matching egress NetworkPolicy"
NO_POLICY = "The pod does not have a matching NetworkPolicy"
"""In development there is none. The pod of `helm test` and those of jobs serve nobody."""


def findings(manifests: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return object, kind and what is said against it, but for what is so on purpose."""
    done = subprocess.run(
        [str(KUBE_SCORE), "score", "--output-format", "ci", "-"],
        input=yaml.safe_dump_all(manifests).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.decode().splitlines()
    assert any(line.startswith("[OK]") for line in lines), done.stderr
    found = [match for line in lines if (match := FINDING.match(line))]
    told = ((match["object"], match["kind"], match["said"]) for match in found)
    return {one for one in told if one[2] not in ON_PURPOSE}


@pytest.mark.parametrize("name", MATRIX)
def test_nothing_is_said_against_the_gateways_chart(name: str) -> None:
    profiles, settings = MATRIX[name]
    found = findings(render(*profiles, **settings))
    on_purpose = {NO_POLICY}
    if any("openshift" in profile for profile in profiles):
        on_purpose.update(LEFT_TO_OPENSHIFT)
    if settings.get("networkPolicy__egress__enabled") is False:
        on_purpose.add(NO_EGRESS)
    assert {one for one in found if one[2] not in on_purpose} == set()
    if "production" in profiles:
        assert {one[0] for one in found if one[2] == NO_POLICY} <= {"events-gateway-test"}


@pytest.mark.parametrize("name", PIPELINE_MATRIX)
def test_nothing_is_said_against_the_jobs_chart(name: str) -> None:
    assert {said for _, _, said in findings(render_pipeline(**PIPELINE_MATRIX[name]))} <= {NO_POLICY}
