"""What every process that a test starts needs: a port of its own, and an end with the test run."""

import random
import socket
import subprocess
from pathlib import Path

HOST = "127.0.0.1"

# Ports come from below Linux's range for outgoing connections (from 32768 on): there, a client that
# retries while the broker is down could be given the broker's own port and connect to itself.
PORTS = range(20_000, 32_000)


def free_port(*, other_than: int | None = None) -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        if port != other_than and is_free(port):
            return port
    raise RuntimeError("no free port found")


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
