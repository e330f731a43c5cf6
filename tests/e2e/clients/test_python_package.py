"""Claim: the Python client's wheel and sdist build, are the same, install alone, and bring their types."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from clients.python.src.gateway_client import VERSION
from tests.support.documents import ROOT
from tests.support.waiting import PATIENCE_S

PACKAGE = ROOT / "clients" / "python"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def test_the_package_builds_and_installs(tmp_path: Path) -> None:
    built, site = tmp_path / "built", tmp_path / "site"
    run([sys.executable, "-m", "hatchling", "build", "-d", str(built)], cwd=PACKAGE)
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/src/")[2] for name in archive.getnames() if "/src/" in name}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert {"gateway_client/py.typed", "gateway_client/client.py"} <= names
    run([*PIP, "install", "--no-deps", "--target", str(site), str(wheel)])
    said = run([sys.executable, "-c", "import gateway_client as c; print(c.__file__, c.VERSION)"], site)
    assert said.split() == [str(site / "gateway_client" / "__init__.py"), VERSION]
    (about,) = site.glob("*.dist-info")
    assert about.name == f"idempotent_gateway_client-{VERSION}.dist-info"
    assert "Requires-Dist: httpx<1,>=0.27" in (about / "METADATA").read_text(encoding="utf-8")


def run(command: list[str], path: Path | None = None, cwd: Path = ROOT) -> str:
    """Run a command with one more folder of modules; return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(path or "")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, timeout=PATIENCE_S, check=True)
    return done.stdout.decode()
