"""Draws the Grafana board by `board.html`: the panels of its JSON with what Prometheus says of a gateway."""

import re
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.support.board import PANELS, query
from tests.support.gateway import Gateway
from tests.support.prometheus import SCRAPE_INTERVAL_S, Prometheus
from tests.support.traffic import traffic

PAGE = Path(__file__).with_name("board.html")
SPAN_S = 60
FIRST_RATE_S = 10
"""Prometheus starts and has scraped twice."""


def picture_of_board(browser: Browser) -> bytes:
    """Return a minute of traffic as the board shows it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            Gateway(folder / "gateway") as gateway,
            Prometheus(folder / "prometheus", gateway) as prometheus,
            traffic(gateway, pause_s=0.02),
        ):
            time.sleep(FIRST_RATE_S + SPAN_S)
            end = round(time.time())
            panels = [_drawn(panel, prometheus, end) for panel in PANELS]
    page = browser.new_page(viewport={"width": 1280, "height": 760})
    page.goto(PAGE.as_uri())
    page.evaluate("([panels, span]) => draw(panels, span)", [panels, [end - SPAN_S, end]])
    picture = page.screenshot(full_page=True)
    page.close()
    return picture


def _drawn(panel: dict[str, Any], prometheus: Prometheus, end: int) -> dict[str, Any]:
    series = [
        {"name": _legend(target["legendFormat"], one["metric"]), "values": _numbers(one["values"])}
        for target in panel["targets"]
        for one in prometheus.ask(
            "query_range",
            query=query(target["expr"], SCRAPE_INTERVAL_S),
            start=end - SPAN_S,
            end=end,
            step=SCRAPE_INTERVAL_S,
        )["result"]
    ]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return {"title": panel["title"], "grid": panel["gridPos"], "unit": unit, "series": series}


def _legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), form)


def _numbers(values: list[tuple[float, str]]) -> list[tuple[float, float]]:
    return [(moment, float(text)) for moment, text in values if text != "NaN"]
