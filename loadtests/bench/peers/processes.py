"""Starts what the gateway is compared with: a private Redis and the peers' services, on loopback."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import HOST, free_port, kill_when_parent_dies

ROOT = Path(__file__).resolve().parents[3]
REDIS_CLIENT = ROOT / "build" / "bench" / "redis"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.05


class PeerError(Exception):
    """A process of a comparison could not be started."""


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[int, int]]:
    """Run Redis in memory alone, its cheapest way; yield its port and pid."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise PeerError("no redis-server found: run `make bench` once or install it (Debian: redis-server)")
    port = free_port()
    options = f"--bind {HOST} --port {port} --dir {folder} --appendonly no --save".split()
    with _process([binary, *options, ""], folder / "redis.log", port) as pid:
        yield port, pid


@contextmanager
def service(
    folder: Path, *, bootstrap_servers: str, topic: str, redis_port: int | None
) -> Iterator[tuple[int, int]]:
    """Run a peer's service; yield its port and pid."""
    port = free_port()
    options = ["--port", port, "--bootstrap-servers", bootstrap_servers, "--topic", topic]
    if redis_port is not None:
        options += ["--redis-port", redis_port]
    command = [sys.executable, "-m", "loadtests.bench.peers.service", *map(str, options)]
    path = os.pathsep.join(map(str, (ROOT, REDIS_CLIENT)))
    with _process(command, folder / f"service-{port}.log", port, {"PYTHONPATH": path}) as pid:
        yield port, pid


@contextmanager
def _process(
    command: Sequence[str], log_path: Path, port: int, env: Mapping[str, str] | None = None
) -> Iterator[int]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | dict(env or {}), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    watcher = kill_when_parent_dies(process.pid)
    try:
        _wait_until_it_listens(process, port, log_path)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        watcher.kill()
        watcher.communicate()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(POLL_INTERVAL_S)
        else:
            return
    raise PeerError(f"it does not listen on port {port}:\n{log_path.read_text(errors='replace')}")
