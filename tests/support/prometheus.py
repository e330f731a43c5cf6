"""Debian's Prometheus, configured as in compose.yaml, scraping one gateway every second."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.gateway import Gateway
from tests.support.processes import HOST, free_port, kill_when_parent_dies
from tests.support.traffic import traffic
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "prometheus.yaml"
ALERTS = ROOT / "helm" / "gateway" / "files" / "alerts.yaml"
SCRAPE_INTERVAL_S = 1
RESULTS = ("accepted", "duplicate", "conflict", "rejected")

Series = dict[str, Any]


class Prometheus:
    """One Prometheus process; every method blocks."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        """Write its configuration; nothing is started yet."""
        folder.mkdir(parents=True, exist_ok=True)
        config = CONFIG.read_text()
        assert "gateway:9090" in config
        assert "15s" in config
        config = config.replace("gateway:9090", f"{HOST}:{gateway.admin_port}")
        (folder / "prometheus.yaml").write_text(config.replace("15s", f"{SCRAPE_INTERVAL_S}s"))
        (folder / ALERTS.name).write_text(ALERTS.read_text())
        self._folder, self._address = folder, f"{HOST}:{free_port()}"
        self.url = f"http://{self._address}"

    def __enter__(self) -> Self:
        words = ["prometheus", "--config.file", self._folder / "prometheus.yaml"]
        words += ["--storage.tsdb.path", self._folder / "data", "--web.listen-address", self._address]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
        self._watcher = kill_when_parent_dies(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._watcher.communicate()

    def ask(self, path: str, **params: str | int) -> Any:
        """Return the data that the HTTP API answers."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params)
        assert answer.status_code == httpx.codes.OK, (params, answer.text)
        return answer.json()["data"]

    def _is_ready(self) -> bool:
        """Whether it answers: not before its port is open, and with 503 while it opens its data."""
        try:
            return httpx.get(f"{self.url}/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def wait_for(self, query: str) -> list[Series]:
        """Return a query's answer as soon as it has one."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found: list[Series] = self.ask("query", query=query)["result"] if self._is_ready() else []
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"no answer to {query}:\n{(self._folder / 'log').read_text()}")


@contextmanager
def busy_prometheus(folder: Path) -> Iterator[Prometheus]:
    """Run one that has seen all kinds of traffic, which goes on."""
    with (
        Gateway(folder / "gateway") as gateway,
        Prometheus(folder / "prometheus", gateway) as prometheus,
        traffic(gateway, pause_s=0.05),
    ):
        for result in RESULTS:
            prometheus.wait_for(f'sum(rate(gateway_events_total{{result="{result}"}}[1m])) > 0')
        prometheus.wait_for('sum(rate(gateway_http_requests_total{code="400"}[1m])) > 0')
        yield prometheus
