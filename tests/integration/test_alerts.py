"""Claim: alerts and board use metrics that exist; each alert has a case in which it fires, and a runbook."""

import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from tests.support.gateway import Gateway
from tests.support.http import new_event

ROOT = Path(__file__).parents[2]
FILES = ROOT / "helm" / "gateway" / "files"
CASES = ROOT / "tests" / "deploy" / "chart" / "alerts_test.yaml"
NOT_EVERYWHERE = ("group", "snapshot_metrics", "inputs")
"""Modules with metrics that a gateway has which is in a group, has a bucket, or has inputs."""
METRIC = r"\b((?:gateway|dedupe|lane|process|pipeline)_[a-z_]+)(?=[{\[)\s]|$)"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return what a gateway that has seen an event shows, and what the jobs' code names."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text("- {key: k, source: s}\n")
    with Gateway(tmp_path_factory.mktemp("gateway"), {"GATEWAY_WRITE_KEYS_FILE": str(keys)}) as gateway:
        httpx.post(f"{gateway.url}/v1/events", json=[new_event()], auth=("k", "")).raise_for_status()
        httpx.post(f"{gateway.url}/v1/events", content=b"", auth=("k", ""))
        httpx.post(f"{gateway.url}/v1/events", json=[5], auth=("k", "")).raise_for_status()
        text = httpx.get(f"{gateway.admin_url}/metrics").text
    shown = set(re.findall(r"^(?:# TYPE )?([a-z_]+)(?:\{| )", text, flags=re.MULTILINE))
    jobs = "".join(path.read_text() for path in (ROOT / "pipeline").rglob("*.py"))
    counted = set(re.findall(r'"(pipeline_[a-z_]+)"', jobs))
    beside = "".join((ROOT / "app" / "admin" / f"{name}.py").read_text() for name in NOT_EVERYWHERE)
    named = counted | set(re.findall(r'"(gateway_[a-z_]+)"', beside))
    return shown | named | {f"{name}_total" for name in named}


def test_alerts_use_metrics_that_exist(metrics: set[str]) -> None:
    for alert in alerts():
        named = set(re.findall(METRIC, alert["expr"]))
        assert named, alert["alert"]
        assert named <= metrics, alert["alert"]


def test_board_uses_metrics_that_exist(metrics: set[str]) -> None:
    panels = orjson.loads((FILES / "dashboard.json").read_bytes())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            named = set(re.findall(METRIC, target["expr"]))
            assert named, panel["title"]
            assert named <= metrics, panel["title"]


def test_every_alert_has_a_case() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    named = {case["name"].split()[0] for case in cases[1:]}
    assert named == {alert["alert"] for alert in alerts()}


def test_every_alert_has_a_runbook() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "ticket")
        folder, _, name = alert["annotations"]["runbook_url"].rpartition("/")
        assert folder == "docs/runbooks"
        text = (ROOT / "docs" / "runbooks" / name).read_text()
        if alert["alert"] != "PipelineAuditViolated":  # older than these headings, and longer
            assert re.findall(r"^## (.*)", text, flags=re.MULTILINE) == [
                "Meaning",
                "Impact",
                "Diagnosis",
                "Mitigation",
            ]
            assert f"`{alert['alert']}`" in text
