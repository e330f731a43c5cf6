"""Claim: the clients follow clients/PROTOCOL.md: its vectors, and every scenario of the conformance run."""

import subprocess
import sys
from pathlib import Path

import pytest

from clients.conformance.__main__ import run
from clients.conformance.scenarios import SCENARIOS

ROOT = Path(__file__).parents[3]
KOTLIN = f"java -XX:TieredStopAtLevel=1 -cp {ROOT}/build/kotlin/classes:{ROOT}/build/kotlin/libs/*"
HARNESSES = {
    "kotlin": f"{KOTLIN} gateway.tests.HarnessKt",
    "python": f"{sys.executable} {ROOT}/clients/conformance/harness/python_client.py",
}


def test_kotlin_client_passes_the_vectors() -> None:
    command = [*KOTLIN.split(), "gateway.tests.VectorsKt", str(ROOT / "clients/conformance/vectors.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", HARNESSES)
def test_client_passes_every_scenario(
    client: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = run(HARNESSES[client], tmp_path)
    told = capfd.readouterr().out
    assert failures == 0, told
    assert told.count(" ok\n") == len(SCENARIOS)
