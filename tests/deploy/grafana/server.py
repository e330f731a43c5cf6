"""Grafana as compose.yaml starts it, but for its ports and folders; the Makefile builds it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.board import BOARD
from tests.support.processes import HOST, free_port, http_server

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
HOME = ROOT / "build" / "grafana"
ETC, DATA = Path("/etc/grafana"), Path("/var/lib/grafana")
"""Where the image has its configuration and its data, and where compose.yaml therefore mounts files."""
BOARD_PATH = f"/api/dashboards/uid/{BOARD['uid']}"
NO_CALLS = {
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
}
"""Grafana asks its makers for news otherwise."""


class Grafana:
    """What a visitor who did not log in gets from a running Grafana."""

    def __init__(self, url: str, log: Path) -> None:
        """Only note where it is."""
        self._log = log
        self.http = httpx.Client(base_url=url)

    def get(self, path: str, **params: str) -> Any:
        """Return what it answers, which must be good."""
        answer = self.http.get(path, params=params)
        assert answer.status_code == httpx.codes.OK, (path, answer.text)
        return answer.json()

    def complaints(self) -> list[str]:
        """Return what it logged about the files that it was given."""
        lines = self._log.read_text().splitlines()
        return [
            line
            for line in lines
            if "logger=provisioning" in line and ("level=warn" in line or "level=error" in line)
        ]


@contextmanager
def grafana_on(prometheus_url: str, folder: Path) -> Iterator[Grafana]:
    """Run one in a folder of its own while the context is open, which begins when the board is there."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    _mount_files(service["volumes"], folder, prometheus_url)
    port = free_port()
    command = [str(HOME / "grafana"), "server", "--homepath", str(HOME)]
    grafana = Grafana(f"http://{HOST}:{port}", folder / "log")
    greet = partial(grafana.http.get, BOARD_PATH)
    environment = service["environment"] | _places(folder, port) | NO_CALLS | {"PATH": os.environ["PATH"]}
    with grafana.http, http_server(command, folder / "log", greet=greet, env=environment):
        yield grafana


def _mount_files(volumes: list[str], folder: Path, prometheus_url: str) -> None:
    for kind in (HOME / "conf" / "provisioning").iterdir():
        _inside(folder, ETC / "provisioning" / kind.name).mkdir(parents=True)  # as the image does
    for volume in volumes:
        source, mounted, _ = volume.split(":")
        text = (DEPLOY / source).read_text().replace("http://prometheus:9090", prometheus_url)
        target = _inside(folder, mounted)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace(str(DATA), str(_inside(folder, DATA))))


def _places(folder: Path, port: int) -> dict[str, str]:
    return {
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_PROVISIONING": str(_inside(folder, ETC / "provisioning")),
        "GF_PATHS_DATA": str(_inside(folder, DATA)),
        "GF_PATHS_PLUGINS": str(_inside(folder, DATA / "plugins")),
        "GF_PATHS_LOGS": str(folder),
    }


def _inside(folder: Path, path: str | Path) -> Path:
    return folder / Path(path).relative_to("/")
