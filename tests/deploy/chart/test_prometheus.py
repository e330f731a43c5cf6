"""Claim: Prometheus, as in compose.yaml, scrapes a gateway, loads the alerts and answers the board."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.board import BOARD, PANELS, may_be_zero, query
from tests.support.prometheus import SCRAPE_INTERVAL_S, Prometheus, busy_prometheus


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with busy_prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


def test_prometheus_scrapes_a_gateway(prometheus: Prometheus) -> None:
    (ready,) = prometheus.wait_for("gateway_ready")
    assert ready["value"][1] == "1"
    assert sum(len(group["rules"]) for group in prometheus.ask("rules")["groups"]) >= 15


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_shows_something(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expression = query(target["expr"], SCRAPE_INTERVAL_S)
        assert "$" not in expression
        # Rates of a few seconds may be 0 at a moment; the wait is for one in which they are not.
        found = prometheus.wait_for(expression if may_be_zero(expression) else f"({expression}) > 0")
        assert not any(math.isnan(float(series["value"][1])) for series in found)
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert all(named <= series["metric"].keys() for series in found), "its legend names labels it lacks"


def test_variables_of_the_board_are_asked_of_what_there_is(prometheus: Prometheus) -> None:
    asked = [each["query"]["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    assert asked == ["label_values(gateway_build_info, namespace)"]
    assert prometheus.wait_for("gateway_build_info")
