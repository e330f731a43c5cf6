"""
A real gateway process for tests: started, killed and started again on the same ports and data.

`main` is the gateway with a crash point: it ends itself with SIGKILL right after the step that a file names
was reached for the time that it gives. `main_of_command` is a command with one.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, Self

import httpx
import jsonschema

from tests.support.constants import Constants, command_with
from tests.support.forked import COMMAND, Forked, Process, can_fork
from tests.support.processes import HOST, free_port, kill_when_parent_dies
from tests.support.waiting import PATIENCE_S

POLL_INTERVAL_S = 0.05
PROBE_TIMEOUT_S = 10.0
"""What an answer may take to a question that is asked again."""
LOG_TAIL_LINES = 60
STATS_SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "app" / "admin" / "stats.schema.json").read_bytes())
)


class GatewayError(Exception):
    """The gateway did not do what it was told."""


class Crash(NamedTuple):
    """Where the process ends itself: right after the step was reached for the n-th time."""

    step: str
    hits: int
    after: str = ""
    """A step before which none counts."""
    pid: int | None = None
    """Of another process that it ends instead."""

    def write(self, path: Path) -> None:
        """Replace the file that a process looks into; hits count from now on."""
        writing = path.with_suffix(".new")
        writing.write_text(json.dumps(self))
        writing.replace(path)


NEVER = Crash("", 0)
"""Of a process that is to be armed later."""


class Gateway:
    """One gateway process; every method blocks."""

    forks = False
    """Whether it is forked, where tests see no difference; what measures wants an operator's start."""
    forked_constants: ClassVar[Constants] = {}
    """What every forked one has, unless its own constants say otherwise."""
    embedded_settings: ClassVar[Mapping[str, str]] = {}
    """What every one on the embedded log has, unless its own settings say otherwise."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] | None = None,
        *,
        options: Sequence[str] = (),
        constants: Constants | None = None,
    ) -> None:
        """
        Choose ports; nothing is started yet.

        Args:
            folder: for its data and log.
            env: adds to the settings.
            options: of `gateway serve`.
            constants: other values of constants, see tests.support.constants.
        """
        self.folder = folder
        self.data = folder / "data"
        self.log_path = folder / "gateway.log"
        self._crash_path = folder / "crash"
        self.port = free_port()
        self.admin_port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.admin_url = f"http://{HOST}:{self.admin_port}"
        self._env = dict(env or {})
        self._options = options
        self._constants = dict(constants or {})
        self._process: Process | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """What the process sees: nothing of the caller's GATEWAY_* settings."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        of_its_log = {} if self._env.get("GATEWAY_LOG") == "kafka" else self.embedded_settings
        return inherited | {
            **of_its_log,
            "GATEWAY_MODE": "development",
            "GATEWAY_HOST": HOST,
            "GATEWAY_PORT": str(self.port),
            "GATEWAY_ADMIN_HOST": HOST,
            "GATEWAY_ADMIN_PORT": str(self.admin_port),
            "GATEWAY_DATA_DIR": str(self.data),
            **self._env,
        }

    @property
    def process(self) -> Process:
        if self._process is None:
            raise GatewayError("the gateway was not started")
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, crash: Crash | None = None, wait: bool = True, stderr: int | None = None) -> None:
        """Start the process and wait until it is ready. `stderr` is a descriptor, else the log file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if crash is not None:
            self.arm(crash)
        with self.log_path.open("ab") as output:
            self._process = self._spawn(output, crash, output.fileno() if stderr is None else stderr)
        self._watcher = kill_when_parent_dies(self._process.pid)
        if wait:
            self.wait_until_ready()

    def _spawn(self, output: IO[bytes], crash: Crash | None, stderr: int) -> Process:
        env, stdout = self.environment, output.fileno()
        constants = {**self.forked_constants, **self._constants}
        if crash is not None:
            path, entry = [str(self._crash_path)], f"{__name__}:main"
            return Forked(path, env=env, stdout=stdout, stderr=stderr, entry=entry, constants=constants)
        if self.forks and not self._options and stderr == stdout and can_fork(env):
            return Forked(["serve"], env=env, stdout=stdout, stderr=stderr, constants=constants)
        command = [COMMAND] if not self._constants else command_with(self._constants)
        command += ["serve", *self._options]
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def arm(self, crash: Crash) -> None:
        """Have a process that was started with a crash end at another one."""
        crash.write(self._crash_path)

    def wait_until_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for 200 on /readyz, or fail with the tail of the log."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise GatewayError(f"the gateway ended with {self.process.returncode}:\n{self.log_tail()}")
            if self.is_ready():
                return
            time.sleep(POLL_INTERVAL_S)
        raise GatewayError(f"the gateway is not ready after {timeout_s} s:\n{self.log_tail()}")

    def wait_until_lanes_serve(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait as long as the lanes alone need: whether requests are taken may depend on more."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                ready = httpx.get(f"{self.admin_url}/readyz", timeout=PROBE_TIMEOUT_S).json()
            except httpx.TransportError:
                pass
            else:
                if ready["active_lanes"] == ready["lanes"]:
                    return
            time.sleep(POLL_INTERVAL_S)
        raise GatewayError(f"the lanes do not serve after {timeout_s} s:\n{self.log_tail()}")

    def is_ready(self) -> bool:
        try:
            ready = httpx.get(f"{self.admin_url}/readyz", timeout=PROBE_TIMEOUT_S)
        except httpx.TransportError:
            return False
        return ready.status_code == httpx.codes.OK

    def end(self) -> None:
        """Leave nothing of it, whatever became of a start."""
        if self._process is not None:
            self.kill()

    def kill(self) -> None:
        """End the process as a crash would."""
        self.process.kill()
        self._reap()

    def stop(self) -> int | None:
        """End the process cleanly and return its exit code."""
        if self._process is None:
            return None
        if self.is_running:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._reap()
            raise GatewayError(
                f"the gateway did not stop within {PATIENCE_S} s:\n{self.log_tail()}"
            ) from None
        return self._reap()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the process ends by itself and return its exit code."""
        self.process.wait(timeout_s)
        return self._reap()

    def delete_index(self) -> None:
        """Lose the dedupe index, as a lost volume would."""
        shutil.rmtree(self.data / "index", ignore_errors=True)

    def stats(self) -> dict[str, Any]:
        """Return /admin/v1/stats, which says what its contract describes, whatever befalls the gateway."""
        answer = httpx.get(f"{self.admin_url}/admin/v1/stats")
        stats: dict[str, Any] = answer.raise_for_status().json()
        STATS_SCHEMA.validate(stats)
        return stats

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def _reap(self) -> int:
        code = self.process.wait()
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            if self._watcher.stdin is not None:
                self._watcher.stdin.close()
            self._watcher = None
        return code


class CrashAt:
    """A crash point that ends the process as a file says, which may be replaced meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._crash = NEVER
        self._is_counting = False
        self._reached = 0

    def __call__(self, name: str) -> None:
        crash = Crash(*json.loads(self._path.read_text()))
        if crash != self._crash:
            self._crash, self._is_counting, self._reached = crash, not crash.after, 0
        self._is_counting = self._is_counting or name == crash.after
        self._reached += self._is_counting and name == crash.step
        if self._reached == crash.hits and name == crash.step:
            os.kill(crash.pid or os.getpid(), signal.SIGKILL)


def main() -> None:
    """Serve until the crash point."""
    from app.main import serve
    from app.settings.model import Settings
    from app.settings.section import load

    asyncio.run(serve(load(Settings), crashpoint=CrashAt(Path(sys.argv[1]))))


def main_of_command() -> None:
    """Run a command on Kafka until the crash point; the first argument is the file of `CrashAt`."""
    from app.cli import main as run
    from dedupe.storage.kafka.store import KafkaStore

    path = Path(sys.argv.pop(1))
    KafkaStore.open = partial(KafkaStore.open, crashpoint=CrashAt(path))  # type: ignore[method-assign]
    run()
