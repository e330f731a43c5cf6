"""
Claim: the image is built from the Dockerfile, is small, runs as nobody in particular on a root it does not
write to, takes events of a published SDK, and ends with 0 at SIGTERM.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.deploy.image.buildah import (
    ROOT,
    build,
    buildah,
    config,
    container,
    end,
    files_of,
    make_base,
    size_of,
    start,
    wait_until_ready,
)
from tests.support.processes import HOST, free_port
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(1800)  # a build without a cache

IMAGE = "localhost/gateway:test"
USER = 10001
BYTES_MAX = 285_000_000
"""120 MB of Debian with its Python, and the gateway with what it needs for AWS, traces and buckets."""
STOP_TIMEOUT_S = PATIENCE_S
SDK = ROOT / "build" / "sdks" / "python" / "segment-2.4.0" / "bin" / "python"
DRIVER = ROOT / "tests" / "e2e" / "sdks" / "python" / "driver.py"


@pytest.fixture(scope="module")
def image() -> str:
    make_base()
    build("gateway", IMAGE)
    return IMAGE


@pytest.fixture
def made(image: str) -> Iterator[tuple[str, Path]]:
    with container(image) as found:
        yield found


def test_image_says_how_to_run_it(image: str) -> None:
    found = config(image)
    assert found["User"] == f"{USER}:{USER}"
    assert found["Entrypoint"] == ["/usr/bin/tini", "--", "/venv/bin/gateway"]
    assert found["Cmd"] == ["serve"]
    assert set(found["ExposedPorts"]) == {"8080", "9090"} or set(found["ExposedPorts"]) == {
        "8080/tcp",
        "9090/tcp",
    }
    assert found["StopSignal"] == "SIGTERM"
    assert found["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_image_is_small_and_lists_what_it_holds(made: tuple[str, Path]) -> None:
    root = made[1]
    size = size_of(root)
    print(f"the image has {size / 1e6:.0f} MB, {size_of(root / 'venv') / 1e6:.0f} of them in /venv")
    assert size <= BYTES_MAX
    bom = json.loads((root / "usr/share/sbom/gateway.cdx.json").read_text())
    names = {component["name"] for component in bom["components"]}
    assert {"idempotent-ingestion-gateway", "rocksdict", "uvicorn", "libc6", "python"} <= names
    assert {"gateway-native", "pyo3", "blake2b_simd"} <= names
    assert "pip" not in names
    assert not list((root / "venv").rglob("pip"))
    assert not (root / "src").exists()


def test_gateway_takes_an_event_and_stops_in_order(made: tuple[str, Path], tmp_path: Path) -> None:
    name, root = made
    log = tmp_path / "gateway.log"
    port = free_port()
    admin_port = free_port()
    settings = {
        "GATEWAY_MODE": "development",
        "GATEWAY_PORT": str(port),
        "GATEWAY_ADMIN_PORT": str(admin_port),
        "GATEWAY_LOGGING_FORMAT": "json",
    }
    found = config(IMAGE)
    before = files_of(root)
    process = start(name, [*found["Entrypoint"], *found["Cmd"]], env=settings, log=log)
    try:
        wait_until_ready(f"http://{HOST}:{admin_port}/readyz", process, log)
        _send(f"http://{HOST}:{port}")
        totals = httpx.get(f"http://{HOST}:{admin_port}/admin/v1/stats").json()["totals"]
        assert (totals["accepted"], totals["rejected"]) == (3, 0)
        told = _inside(name, f"http://{HOST}:{admin_port}", "gateway", "stats").splitlines()
        assert ["accepted", "3"] in [line.split() for line in told]
        page = httpx.get(f"http://{HOST}:{admin_port}/runbooks/log-down")
        assert page.text == (ROOT / "docs/runbooks/log-down.md").read_text(encoding="utf-8")
        tini = _child(process.pid, "tini")
        server = _child(tini.pid, "gateway")
        assert (tini.uids().real, server.uids().real) == (USER, USER)
        tini.send_signal(signal.SIGTERM)
        assert process.wait(STOP_TIMEOUT_S) == 0, log.read_text()
    finally:
        end(process)
    assert files_of(root) == before, "the gateway wrote to its root"


def _inside(name: str, admin_url: str, *command: str) -> str:
    """Return what a command prints in a container, as through `kubectl exec`, which has no entry point."""
    options = ("--isolation", "chroot", "--env", f"GATEWAY_ADMIN_URL={admin_url}")
    return buildah("run", *options, name, "--", *command)


def _send(url: str) -> None:
    words = [str(SDK), str(DRIVER), "segment.analytics", url, "10", "3", "hello"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []


def _child(pid: int, name: str) -> psutil.Process:
    """Return the descendant that runs this program."""
    for child in psutil.Process(pid).children(recursive=True):
        words = child.cmdline()
        if any(Path(word).name == name for word in words[:2]) and "buildah" not in words[0]:
            return child
    raise AssertionError(f"no process {name}")
