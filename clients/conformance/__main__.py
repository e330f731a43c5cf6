"""
Runs a client through all scenarios: `make conformance HARNESS="command"`.

Each event that the client has confirmed must be in the gateway's log once, or be a dead letter where it has
to be one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from clients.conformance.proxy import PASS, Proxy
from clients.conformance.scenarios import (
    NEEDS_ITS_OWN_GATEWAY,
    PATIENCE_S,
    SCENARIOS,
    SESSIONS_MAX,
    World,
    is_event_of,
)
from tests.support.forked import COMMAND
from tests.support.gateway import Gateway


def main() -> int:
    """Run the scenarios; return how many fail."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--harness", required=True, help="command that speaks the harness's lines")
    options.add_argument(
        "--url", help="of a gateway whose log GATEWAY_* settings name; without it, one is made"
    )
    options.add_argument("--only", default="", help="scenarios with this in their names")
    options.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds a client may take to deliver"
    )
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(chosen.harness, Path(folder), url=chosen.url, only=chosen.only, patience_s=chosen.patience)


def _print(line: str) -> None:
    print(line, flush=True)


def run(
    command: str,
    folder: Path,
    *,
    url: str | None = None,
    only: str = "",
    patience_s: float = PATIENCE_S,
    tell: Callable[[str], None] = _print,
) -> int:
    """Run the scenarios that have `only` in their names; return how many fail, and tell a line of each."""
    if url is not None:
        port = urlsplit(url).port
        assert port is not None, "the URL needs a port on this machine"
        return _run_all(command, folder, port, None, only, patience_s, tell)
    settings = {"GATEWAY_PARTITIONS": "1", "GATEWAY_SESSIONS_MAX": str(SESSIONS_MAX)}
    with Gateway(folder / "gateway", settings) as gateway:
        return _run_all(command, folder, gateway.port, gateway, only, patience_s, tell)


def _run_all(
    command: str,
    folder: Path,
    port: int,
    gateway: Gateway | None,
    only: str,
    patience_s: float,
    tell: Callable[[str], None],
) -> int:
    failures = 0

    with Proxy(port) as proxy:
        for scenario in SCENARIOS:
            name = scenario.__name__
            if only not in name or (gateway is None and scenario in NEEDS_ITS_OWN_GATEWAY):
                continue
            proxy.choose, began = (lambda _request: PASS), time.monotonic()
            world = World(
                proxy,
                command,
                folder / name,
                name,
                patience_s=patience_s,
                gateway=gateway,
            )
            try:
                scenario(world)
                problem = _problem_of(world, gateway.environment if gateway else None)
            except Exception as err:
                problem = f"{type(err).__name__}: {err}"
            finally:
                world.end()
            failures += problem is not None
            verdict = "ok" if problem is None else f"FAILED: {problem}"
            tell(f"{name:24} {time.monotonic() - began:5.1f} s  {verdict}")
    return failures


def _problem_of(world: World, environment: dict[str, str] | None) -> str | None:
    """Return what of a scenario's confirmed events is not in the log once; None if all are."""
    printed = subprocess.run([COMMAND, "events"], env=environment, capture_output=True, check=True).stdout
    values = [json.loads(line)["value"] for line in printed.splitlines()]
    stored = Counter(value["event"] for value in values if is_event_of(world.name, value))
    lost, twice = world.told - stored.keys(), [name for name, times in stored.items() if times > 1]
    if lost or twice:
        return f"of {len(world.told)} events {len(lost)} are lost and {len(twice)} stored twice"
    return None


if __name__ == "__main__":
    sys.exit(main())
