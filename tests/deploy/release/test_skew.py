"""
Claim: a group is upgraded from the version before, and rolled back to it, one worker after the other, while
clients send: nothing is lost, stored twice or answered with other bytes.

The version before is that of the last tag; without tags, and on the tagged commit itself, of the commit
before. SKEW_FROM names another one.
"""

import asyncio
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest

from tests.deploy.image.buildah import ROOT
from tests.fault.conftest import kafka_log
from tests.support.gateway import Crash
from tests.support.verdict import assert_exactly_once
from tests.support.waiting import until_in_thread
from tests.support.workers import Worker, Workers

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
SERVE = "import sys; from app.cli import main; sys.argv[0] = 'gateway'; main()"
LOAD_S = 2.0  # the load, not a wait for a condition

pytestmark = pytest.mark.timeout(900)


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def version_before() -> str:
    """Return the commit whose wheel the group comes from."""
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    return os.environ.get("SKEW_FROM") or git("rev-parse", tag or "HEAD^")


def unpacked_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree and return a folder that has it, and not what it needs."""
    limits = ["--build-constraint", str(ROOT / "constraints.txt")]
    wheels, site = folder / "wheels", folder / "site"
    subprocess.run([*PIP, "wheel", "--no-deps", *limits, "--wheel-dir", str(wheels), str(source)], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    return site


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The code of the version before, and of this one."""
    folder = tmp_path_factory.mktemp("skew")
    archive, source = folder / "before.tar", folder / "source"
    commit = version_before()
    subprocess.run(["git", "archive", "--output", str(archive), commit], cwd=ROOT, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    print(f"upgraded from {git('log', '-1', '--format=%h %s', commit)}")
    return unpacked_wheel(source, folder / "before"), unpacked_wheel(ROOT, folder / "now")


class Versioned(Worker):
    """A worker that runs the code of one of the versions."""

    site: Path

    def _spawn(self, output: IO[bytes], crash: Crash | None, stderr: int) -> subprocess.Popen[bytes]:
        assert crash is None
        env = {**self.environment, "PYTHONPATH": str(self.site), "GATEWAY_NATIVE": "off"}
        command = [sys.executable, "-P", "-c", SERVE, "serve"]
        where = [*command[:3], "import app; print(app.__file__)"]
        found = subprocess.run(where, env=env, cwd=self.folder, capture_output=True, text=True, check=True)
        assert found.stdout.startswith(str(self.site))
        return subprocess.Popen(
            command, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=stderr
        )


class VersionedWorkers(Workers):
    """A group whose workers may differ in version."""

    def new(self, name: str, **env: str) -> Versioned:
        """See Workers."""
        settings: Mapping[str, str] = {**self._env, **env}
        return Versioned(self._folder, name, settings)

    def every_lane_is_owned_and_followed(self) -> bool:
        columns = zip(*(worker.states() for worker in self.running), strict=True)
        return all(column.count("active") == column.count("following") == 1 for column in columns)


async def test_upgrade_and_rollback_lose_nothing(
    sites: tuple[Path, Path], kafka_bootstrap: str, tmp_path: Path
) -> None:
    before, now = sites
    log = kafka_log(kafka_bootstrap)
    workers = VersionedWorkers(tmp_path, log.env, 2)
    first, second = (worker for worker in workers.all if isinstance(worker, Versioned))
    first.site = second.site = before
    try:
        await workers.start()
        async with workers.load() as load:
            for worker, site in ((first, now), (second, now), (first, before)):
                assert isinstance(worker, Versioned)
                await asyncio.sleep(LOAD_S)
                worker.is_in_use = False
                await asyncio.to_thread(worker.stop)
                worker.site = site
                await asyncio.to_thread(worker.start)
                worker.is_in_use = True
                await until_in_thread(workers.every_lane_is_owned_and_followed)
            await asyncio.sleep(LOAD_S)
        await workers.repeat()
        assert_exactly_once(await log.read(first), workers.clients)
        print(f"{len(load.said())} requests, {len(load.errors())} answered otherwise than by 200")
    finally:
        await workers.stop()
