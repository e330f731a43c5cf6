"""The Grafana board: its panels, and their queries as Grafana sends them."""

from pathlib import Path
from typing import Any

import orjson

BOARD = orjson.loads(
    (Path(__file__).parents[2] / "helm" / "gateway" / "files" / "dashboard.json").read_bytes()
)
PANELS: list[dict[str, Any]] = BOARD["panels"]


def query(expression: str, scrape_interval_s: int) -> str:
    """Return a panel's expression with its variables at `All`, for steps as long as a scrape's interval."""
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            expression = expression.replace(f"${variable['name']}", variable["allValue"])
    # Grafana: the step and a scrape's interval, but at least four scrapes' intervals.
    return expression.replace("$__rate_interval", f"{4 * scrape_interval_s}s")
