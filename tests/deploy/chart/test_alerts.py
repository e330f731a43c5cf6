"""Claim: the chart renders the alerts as they are, and each fires when it should."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart.helm import CHART, only, render

ALERTS = CHART / "files" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def promtool(*words: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rendered_rules(tmp_path: Path) -> None:
    rendered = tmp_path / "rules.yaml"
    rendered.write_text(yaml.safe_dump(only(render("production"), "PrometheusRule")["spec"]))
    promtool("check", "rules", rendered)
    found = [rule for group in yaml.safe_load(rendered.read_text())["groups"] for rule in group["rules"]]
    assert found == alerts(), "the chart must not change an expression"


def test_alerts_can_be_left_out_and_their_runbooks_moved() -> None:
    rule = only(
        render(
            "production",
            prometheusRule__disabled=["GatewayOverloaded"],
            prometheusRule__runbookBaseUrl="https://wiki.example.com/",
        ),
        "PrometheusRule",
    )
    found = [rule for group in rule["spec"]["groups"] for rule in group["rules"]]
    assert "GatewayOverloaded" not in {alert["alert"] for alert in found}
    assert len(found) == len(alerts()) - 1
    assert all(alert["annotations"]["runbook_url"].startswith("https://wiki") for alert in found)


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for source in (ALERTS, CASES):
        (tmp_path / source.name).write_text(source.read_text())
    promtool("test", "rules", tmp_path / CASES.name)
