"""
Claim: Grafana accepts its files of compose.yaml, shows the board to visitors who did not log in, and has
an answer of Prometheus for each panel.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.deploy.grafana.server import BOARD_PATH, Grafana, grafana_on
from tests.support.board import BOARD, PANELS, may_be_zero, with_all
from tests.support.prometheus import busy_prometheus
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S
TARGETS = {f"{panel['title']} {target['refId']}": target for panel in PANELS for target in panel["targets"]}
SOURCE = {"type": "prometheus", "uid": "prometheus"}

Frame = dict[str, Any]


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grafana]:
    folder = tmp_path_factory.mktemp("grafana")
    with (
        busy_prometheus(folder) as prometheus,
        grafana_on(prometheus.url, folder / "grafana") as running,
    ):
        yield running


def test_files_are_accepted(grafana: Grafana) -> None:
    assert grafana.complaints() == []


def test_data_source_is_the_default_and_answers(grafana: Grafana) -> None:
    told = grafana.get("/api/frontend/settings")
    assert told["datasources"][told["defaultDatasource"]]["uid"] == SOURCE["uid"]
    assert grafana.get(f"/api/datasources/uid/{SOURCE['uid']}/health")["status"] == "OK"


def test_board_is_the_charts(grafana: Grafana) -> None:
    (found,) = grafana.get("/api/search", query=BOARD["title"])
    assert found["uid"] == BOARD["uid"]
    shown = grafana.get(BOARD_PATH)["dashboard"]
    assert {name: shown[name] for name in BOARD if name != "version"} == {
        name: value for name, value in BOARD.items() if name != "version"
    }


def test_visitors_change_nothing(grafana: Grafana) -> None:
    meta = grafana.get(BOARD_PATH)["meta"]
    assert meta["provisioned"]
    assert [right for right in meta if right.startswith("can") and meta[right]] == []
    saved = grafana.http.post("/api/dashboards/db", json={"dashboard": BOARD, "overwrite": True})
    assert saved.status_code == httpx.codes.FORBIDDEN


def test_variable_has_only_all_to_choose(grafana: Grafana) -> None:
    """Without Kubernetes no metric has a namespace; `All` also takes those without."""
    path = f"/api/datasources/uid/{SOURCE['uid']}/resources/api/v1/label"
    match = {"match[]": "gateway_build_info"}
    assert grafana.get(f"{path}/namespace/values", **match)["data"] == []
    assert grafana.get(f"{path}/job/values", **match)["data"] == ["gateway"]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_each_panel_gets_an_answer(grafana: Grafana, target: dict[str, Any]) -> None:
    for frame in wait_for_frames(grafana, target):
        field = frame["schema"]["fields"][1]
        legend = re.sub(r"{{(\w+)}}", r"{\1}", target["legendFormat"]).format(**field["labels"])
        assert field["config"]["displayNameFromDS"] == legend


def wait_for_frames(grafana: Grafana, target: dict[str, Any]) -> list[Frame]:
    """Return a query's answer as soon as there is a value in it, one that is not 0 if it has to."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        frames = ask(grafana, target)
        values = [value for frame in frames for value in frame["data"]["values"][1] if value is not None]
        if any(values) or (values and may_be_zero(target["expr"])):
            return frames
        time.sleep(0.2)
    raise AssertionError(f"no value for {target['expr']}")


def ask(grafana: Grafana, target: dict[str, Any]) -> list[Frame]:
    """Return what Grafana answers to a query as a browser sends it."""
    query = target | {"expr": with_all(target["expr"]), "datasource": SOURCE, "intervalMs": 1000}
    asked = {"queries": [query | {"maxDataPoints": 500}], "from": "now-5m", "to": "now"}
    answer = grafana.http.post("/api/ds/query", json=asked)
    assert answer.status_code == httpx.codes.OK, answer.text
    frames: list[Frame] = answer.json()["results"][target["refId"]]["frames"]
    return [frame for frame in frames if frame["data"]["values"]]
