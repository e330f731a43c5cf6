"""Claim: the wheel, installed with pip into an empty environment, serves; systemd's unit fits it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.deploy.image.buildah import ROOT
from tests.support.processes import HOST, free_port
from tests.support.waiting import PATIENCE_S

UNIT = ROOT / "deploy" / "gateway.service"
EXPOSURE_MAX = 20  # of 100: what systemd-analyze calls "OK" ends at 49
TIMEOUT_S = PATIENCE_S


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the environment that has the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = folder / "venv"
    constraints = str(ROOT / "constraints.txt")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    limits = ["--quiet", "--constraint", constraints, "--build-constraint", constraints]
    wheels = ["--no-deps", "--wheel-dir", str(folder / "wheels")]
    subprocess.run([*pip, "wheel", "--quiet", *limits[3:], *wheels, str(ROOT)], check=True, timeout=300)
    (wheel,) = (folder / "wheels").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    target = [*pip, "--python", str(environment / "bin" / "python"), "install"]
    subprocess.run([*target, *limits, str(wheel)], check=True, timeout=300)
    return environment


def test_wheel_serves(installed: Path, tmp_path: Path) -> None:
    port = free_port()
    admin_port = free_port()
    settings = {
        "PATH": "/usr/bin:/bin",
        "GATEWAY_MODE": "development",
        "GATEWAY_PORT": str(port),
        "GATEWAY_ADMIN_PORT": str(admin_port),
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        words = [str(installed / "bin" / "gateway"), "serve"]
        process = subprocess.Popen(words, env=settings, cwd=tmp_path, stdout=output, stderr=output)
    try:
        _wait_until_ready(port, process, log)
        event = {"messageId": "wheel-1", "type": "track", "event": "Installed"}
        answer = httpx.post(f"http://{HOST}:{port}/v1/events", json=[event], auth=("k", ""))
        assert answer.json()["receipts"][0]["messageId"] == "wheel-1"
        for name in ("console/", "console/console.css", "console/main.js", "runbooks/log-down"):
            httpx.get(f"http://{HOST}:{admin_port}/{name}").raise_for_status()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
    told = subprocess.run(
        [installed / "bin" / "gateway", "events"], cwd=tmp_path, capture_output=True, check=True
    )
    assert json.loads(told.stdout)["messageId"] == "wheel-1"


def test_unit_is_one(installed: Path, tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/gateway/bin/gateway", str(installed / "bin" / "gateway"))
    unit = tmp_path / "gateway.service"
    unit.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "notice"},
    )
    complaints = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-400:]


def test_unit_waits_longer_than_a_stop_takes() -> None:
    told = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), flags=re.MULTILINE))
    assert int(told["TimeoutStopSec"]) > 15
    assert told["RestartPreventExitStatus"] == "2 3"


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"http://{HOST}:{port}/health").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text())
