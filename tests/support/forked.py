"""
Processes that need not import the gateway: they are forked off one that has, and did nothing else.

Importing is three quarters of what a start costs, and a test run has some six hundred of them. All else is
a process's own: its pid, descriptors, environment, working folder and exit code. What the console script
itself does is seen where a test runs `COMMAND`, or asks a Gateway for options or a stderr of its own; and
what is told to the interpreter, by a variable such as PYTHONOPTIMIZE, needs a start of its own as well.

`python -m tests.support.forked FD` is the process that is forked. It ends with whoever holds the socket's
other end.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeAlias

from tests.support.constants import Constants, change

COMMAND = str(Path(sys.executable).with_name("gateway"))
ENTRY = "app.cli:main"
PACKAGES = ("app", "dedupe")
LATE = ("typer.rich_utils", "uvloop", "uvicorn.lifespan.on", "uvicorn.loops.uvloop")
"""What is imported by functions, and by nearly every start."""

REQUEST_BYTES_MAX = 200_000
PID_BYTES = 4


class Forked:
    """A forked process, with what there is of subprocess.Popen."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        entry: str = ENTRY,
        constants: Constants | None = None,
    ) -> None:
        """
        Start it.

        Args:
            arguments: of its function, which finds them in sys.argv.
            env: its whole environment.
            stdout: a descriptor.
            stderr: another one.
            entry: its function as MODULE:NAME.
            constants: other values of constants, see tests.support.constants.
        """
        self.args = ["gateway", *arguments]
        request = {"argv": self.args, "env": dict(env), "cwd": os.getcwd(), "entry": entry}
        request["constants"] = dict(constants or {})
        self.returncode: int | None = None
        self._told, telling = socket.socketpair()
        with telling, open(os.devnull, "rb") as stdin:
            fds = [telling.fileno(), stdin.fileno(), stdout, stderr]
            socket.send_fds(_server(), [json.dumps(request).encode()], fds)
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code, as subprocess.Popen has it; None while the process runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (BlockingIOError, TimeoutError):
                return None
            self._told.close()
        return self.returncode

    def _number(self) -> int:
        told = self._told.recv(PID_BYTES)
        if not told:
            raise RuntimeError("the process that is forked has ended")
        return int.from_bytes(told, "big", signed=True)


Process: TypeAlias = subprocess.Popen[bytes] | Forked


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether an environment tells the interpreter nothing that this one was not told."""
    return all(not name.startswith("PYTHON") or value == os.environ.get(name) for name, value in env.items())


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], timeout_s: float, entry: str = ENTRY
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, as subprocess.run does. Raises subprocess.TimeoutExpired."""
    if entry == ENTRY and not can_fork(env):
        command = [COMMAND, *arguments]
        return subprocess.run(command, env=env, capture_output=True, timeout=timeout_s, check=False)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Forked(arguments, env=env, stdout=out.fileno(), stderr=err.fileno(), entry=entry)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(process.args, code, _text(out), _text(err))


def _text(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@cache
def _server() -> socket.socket:
    """Start what is forked, once, for as long as this process lives."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def main() -> None:
    """Fork at each request; tell its pid at once and its exit code at its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    told: dict[int, tuple[int, socket.socket]] = {}
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                pid, telling = told.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                _tell(telling, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                telling.close()
                continue
            message, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 4)
            if not message:
                return
            if (pid := os.fork()) == 0:
                selector.close()
                for left in (control, *(telling for _, telling in told.values())):
                    left.close()
                _become(json.loads(message), fds[1:])
                return
            telling = socket.socket(fileno=fds[0])
            for fd in fds[1:]:
                os.close(fd)
            _tell(telling, pid)
            pidfd = os.pidfd_open(pid)
            told[pidfd] = pid, telling
            selector.register(pidfd, selectors.EVENT_READ)


def _import_all() -> None:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    # What each process would count and collect is written to by none.
    gc.collect()
    gc.freeze()


def _tell(telling: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        telling.send(number.to_bytes(PID_BYTES, "big", signed=True))


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Run what was asked for as the process that this one has just become."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(len(streams), os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    change(request["constants"])
    module, _, name = request["entry"].partition(":")
    getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    main()
