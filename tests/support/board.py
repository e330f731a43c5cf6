"""The Grafana board: its panels, and their queries as Grafana sends them."""

from pathlib import Path
from typing import Any

import orjson

BOARD = orjson.loads(
    (Path(__file__).parents[2] / "helm" / "gateway" / "files" / "dashboard.json").read_bytes()
)
PANELS: list[dict[str, Any]] = BOARD["panels"]
MAY_BE_ZERO = {
    "gateway_queue_events": "the lanes take them faster than clients send",
    "gateway_restore_lag_records": "the gateway started with an empty log",
    "gateway_http_link_failures_total": "no client has a slow link",
    "gateway_http_unknown_clients_total": "no client comes through a proxy",
    "gateway_body_memory_bytes": "a body is there for a moment, in which Prometheus seldom looks",
}


def may_be_zero(expression: str) -> bool:
    """Return whether a panel's expression may show nothing but 0 of a gateway with traffic."""
    return any(metric in expression for metric in MAY_BE_ZERO)


def query(expression: str, scrape_interval_s: int) -> str:
    """Return a panel's expression as Prometheus gets it, for steps as long as a scrape's interval."""
    # Grafana: the step and a scrape's interval, but at least four scrapes' intervals.
    return with_all(expression).replace("$__rate_interval", f"{4 * scrape_interval_s}s")


def with_all(expression: str) -> str:
    """Return a panel's expression with the board's variables at `All`, as a browser sends it to Grafana."""
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            expression = expression.replace(f"${variable['name']}", variable["allValue"])
    return expression
