"""What every process that a test starts needs: a port of its own, and an end with the test run."""

import fcntl
import itertools
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import httpx

from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"

POLL_INTERVAL_S = 0.05

# Ports come from below Linux's range for outgoing connections (from 32768 on): there, a client that
# retries while the broker is down could be given the broker's own port and connect to itself.
PORTS = range(20_000, 32_000)


BLOCK = 100
BLOCKS_MAX = 10
LOCKS = Path(tempfile.gettempdir()) / "gateway-test-ports"


@cache
def _ports() -> Iterator[int]:
    """
    Return this process's ports, for ever: nobody else draws them, also while what listened on one is down.

    A block of ports belongs to the process that has its file locked, among all test runs of this machine.
    If no block is left, ports are shared.
    """
    LOCKS.mkdir(exist_ok=True)
    blocks = list(range(0, len(PORTS), BLOCK))
    random.SystemRandom().shuffle(blocks)
    own = list(itertools.islice(filter(_is_ours, blocks), BLOCKS_MAX)) or blocks
    ports = [port for block in own for port in PORTS[block : block + BLOCK]]
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


def _is_ours(block: int) -> bool:
    """Lock a block, as long as this process lives."""
    try:
        file = os.open(LOCKS / str(PORTS[block]), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    return True


def free_port() -> int:
    """Return a port that nothing listens on, and that is not given again before a thousand others were."""
    return next(port for port in itertools.islice(_ports(), BLOCK) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, and that it has not yet waited for."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def kill_when_parent_dies(pid: int) -> subprocess.Popen[bytes]:
    """
    Start a process that reads a pipe nobody writes to and kills `pid` at its end.

    The pipe ends when this process ends, even by SIGKILL. PR_SET_PDEATHSIG would need no
    process, but fires when the *thread* that started the broker ends.
    """
    script = 'cat; kill -KILL "$0"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def http_server(
    command: Sequence[str],
    log: Path,
    *,
    greet: Callable[[], httpx.Response],
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """
    Run a server while the context is open, which begins when a first request is answered well.

    The process also ends when the parent dies. Raises RuntimeError with the log if it does not answer.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    observer = kill_when_parent_dies(process.pid)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _is_answered(greet):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(POLL_INTERVAL_S)
        yield
    finally:
        for ended in (process, observer):
            ended.kill()
            ended.communicate()


def _is_answered(greet: Callable[[], httpx.Response]) -> bool:
    try:
        greet().raise_for_status()
    except httpx.HTTPError:
        return False
    return True
