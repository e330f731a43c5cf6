"""Spark jobs as processes of their own, killed and started again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pipeline.runtime.session import JAVA_OPTIONS
from tests.support.processes import kill_when_parent_dies

START_TIMEOUT_S = 240.0  # ten seconds on two free cores; a loaded machine gets twenty times that
POLL_INTERVAL_S = 0.05

# Half of a short run is the JVM's start and its compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# To generate and compile code for each plan takes longer than to interpret it on a few rows. The jobs
# that spark-submit and Spark Connect run in test_launchers.py do compile theirs.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

QUICK = INTERPRETED | {JAVA_OPTIONS: QUICK_JVM}


def as_options(conf: Mapping[str, str]) -> list[str]:
    """Return settings as our jobs and spark-submit take them."""
    return [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]


class JobProcess:
    """`python -m pipeline` with these arguments; what it says on stderr is kept."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._log = folder / "job.log"
        with self._log.open("ab") as log:
            self._said_before = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", *map(str, arguments), *as_options(QUICK)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self._watcher = kill_when_parent_dies(self._process.pid)

    @property
    def said(self) -> str:
        """What this process wrote on stderr so far."""
        return self._log.read_bytes()[self._said_before :].decode(errors="replace")

    def wait_for_batches(self, count: int) -> None:
        """Wait until it told of so many batches, or until it ended by itself."""
        self.wait_until_said(": batch ", count)

    def wait_until_said(self, words: str, count: int = 1) -> None:
        """Wait until it has said this so often, or until it ended by itself."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.said.count(words) < count and self._process.poll() is None:
            assert time.monotonic() < deadline, self.said
            time.sleep(POLL_INTERVAL_S)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def kill(self) -> int:
        """End the driver, its JVM and all they started, as a lost machine would; return its exit code."""
        self._kill_rest()
        return self._reap()

    def terminate(self) -> int:
        """Ask the driver to stop, and return its exit code."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait until it ends by itself, and return its exit code."""
        try:
            self._process.wait(START_TIMEOUT_S)
        finally:
            self._kill_rest()
        return self._reap()

    def _kill_rest(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _reap(self) -> int:
        code = self._process.wait()
        self._watcher.kill()
        self._watcher.communicate()
        return code


def kill_at_work(folder: Path, arguments: list[object], *, seed: int) -> None:
    """Start a job and kill it at a random moment after a batch or two, before it is done."""
    moments = random.Random(seed)
    victim = JobProcess(folder, *arguments)
    try:
        victim.wait_for_batches(moments.randint(1, 2))
        time.sleep(moments.random())
    finally:
        code = victim.kill()
    assert code == -signal.SIGKILL, f"it ended before it was killed (seed {seed}):\n{victim.said}"
