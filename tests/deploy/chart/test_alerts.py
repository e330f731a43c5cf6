"""Claim: the chart renders the alerts as they are, and each fires when it should."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart.helm import CHART, helm, only, render, values

ALERTS = CHART / "files" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def promtool(*words: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SCOPE = 'namespace="ingest", job="events-gateway-admin"'
METRIC = re.compile(r"gateway_[a-z_]+")


def rendered(**settings: Any) -> list[dict[str, Any]]:
    rule = only(render("production", **settings), "PrometheusRule")
    return [rule for group in rule["spec"]["groups"] for rule in group["rules"]]


def test_promtool_accepts_the_rendered_rules(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "gateway", "rules": rendered()}]}))
    promtool("check", "rules", rules)


def test_each_metric_of_a_release_is_its_own_and_nothing_else_changes() -> None:
    for rule, original in zip(rendered(), alerts(), strict=True):
        expression = rule.pop("expr")
        assert expression.count(SCOPE) == len(METRIC.findall(original["expr"]))
        unscoped = expression.replace(f"{{{SCOPE}, ", "{").replace(f"{{{SCOPE}}}", "")
        assert unscoped == original.pop("expr")
        assert rule["annotations"].pop("runbook") == original["annotations"].pop("runbook_url")
        assert rule == original


def test_alerts_are_fitted_to_who_reads_them() -> None:
    usual = {rule["alert"]: rule for rule in rendered()}
    found = rendered(
        prometheusRule__disabled=["GatewayOverloaded"],
        prometheusRule__runbookBaseUrl="https://wiki.example.com/",
        prometheusRule__severities={"page": "critical"},
        prometheusRule__overrides={"GatewaySlowAnswers": {"for": "30m", "labels": {"team": "events"}}},
    )
    assert len(found) == len(alerts()) - 1
    for rule in found:
        usually = usual[rule["alert"]]
        page = usually["annotations"]["runbook"].removeprefix("docs/runbooks/").removesuffix(".md")
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example.com/{page}.html"
        if rule["alert"] == "GatewaySlowAnswers":
            assert (rule["for"], rule["labels"]) == ("30m", {"severity": "critical", "team": "events"})
    assert {rule["labels"]["severity"] for rule in found} == {"critical", "ticket"}


def test_releases_of_a_namespace_hide_nothing_of_each_other(tmp_path: Path) -> None:
    """Two releases serve topics of one name; one is gone, and a partition of it is served by nobody."""
    for release in ("events", "other"):
        text = helm("template", release, CHART, "--namespace", "ingest", *values("production"))
        rule = only([document for document in yaml.safe_load_all(text) if document], "PrometheusRule")
        (tmp_path / f"{release}.yaml").write_text(yaml.safe_dump(rule["spec"]))
    good, bad = "events-gateway-admin", "other-gateway-admin"
    lane = 'gateway_lane_state{{namespace="ingest",job="{}",topic="events",partition="0",state="active"}}'
    series = [
        (f'gateway_build_info{{namespace="ingest",job="{good}"}}', "1x30"),
        (f'gateway_ready{{namespace="ingest",job="{good}"}}', "1x30"),
        (lane.format(good), "1x30"),
        (lane.format(bad), "0x30"),
    ]
    down = {"severity": "page", "namespace": "ingest", "job": bad}
    lost = {"severity": "page", "namespace": "ingest", "job": bad, "topic": "events", "partition": "0"}
    texts = {rule["alert"]: rule["annotations"] for rule in rendered()}
    summary = texts["GatewayPartitionDown"]["summary"].replace("{{ $labels.partition }}", "0")
    case = {
        "rule_files": ["events.yaml", "other.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": seen} for name, seen in series],
                "alert_rule_test": [
                    {
                        "eval_time": "20m",
                        "alertname": "GatewayDown",
                        "exp_alerts": [
                            {"exp_labels": down, "exp_annotations": texts["GatewayDown"]},
                        ],
                    },
                    {
                        "eval_time": "20m",
                        "alertname": "GatewayPartitionDown",
                        "exp_alerts": [
                            {
                                "exp_labels": lost,
                                "exp_annotations": texts["GatewayPartitionDown"]
                                | {"summary": summary.replace("{{ $labels.topic }}", "events")},
                            }
                        ],
                    },
                ],
            }
        ],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    promtool("test", "rules", tmp_path / "case.yaml")


@pytest.mark.timeout(900)
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for source in (ALERTS, CASES):
        (tmp_path / source.name).write_text(source.read_text())
    promtool("test", "rules", tmp_path / CASES.name)
