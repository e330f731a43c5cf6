"""Claim: Prometheus, configured as in compose.yaml, scrapes a gateway and loads the alerts."""

import subprocess
import time
from pathlib import Path

import httpx

from tests.chart.helm import CHART, ROOT
from tests.support.gateway import Gateway
from tests.support.processes import HOST, free_port

TIMEOUT_S = 60.0


def test_prometheus_scrapes_a_gateway(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        config = (ROOT / "deploy" / "prometheus.yaml").read_text()
        assert "gateway:9090" in config
        config = config.replace("gateway:9090", f"{HOST}:{gateway.admin_port}").replace("15s", "1s")
        (tmp_path / "prometheus.yaml").write_text(config)
        (tmp_path / "alerts.yaml").write_text((CHART / "files" / "alerts.yaml").read_text())
        port = free_port()
        words = ["--config.file", tmp_path / "prometheus.yaml", "--storage.tsdb.path", tmp_path / "data"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                ["prometheus", *map(str, words), "--web.listen-address", f"{HOST}:{port}"],
                stdout=log,
                stderr=log,
            )
        try:
            value = _wait_for(f"http://{HOST}:{port}", "gateway_ready", tmp_path / "log")
            assert value == "1"
            rules = httpx.get(f"http://{HOST}:{port}/api/v1/rules").json()["data"]["groups"]
            assert sum(len(group["rules"]) for group in rules) >= 15
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(url: str, query: str, log: Path) -> str:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            found = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()["data"]["result"]
        except (httpx.TransportError, KeyError, ValueError):
            found = []
        if found:
            value: str = found[0]["value"][1]
            return value
        time.sleep(0.2)
    raise AssertionError(log.read_text())
