"""A real Postgres for tests: one private server on loopback, from Debian's package, with throw-away data."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg

from tests.support.processes import HOST, free_port, kill_when_parent_dies
from tests.support.waiting import PATIENCE_S

BINARIES = Path("/usr/lib/postgresql")  # Debian keeps them off the PATH, in a folder a version
USER = "tests"
POLL_INTERVAL_S = 0.05

# Its data need not survive anything.
QUICK = ("fsync=off", "full_page_writes=off", f"listen_addresses={HOST}", "shared_buffers=16MB")


class PostgresError(Exception):
    """The server could not be started."""


class Postgres:
    """One server; a context. The process also ends when the parent dies."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"postgresql://{USER}@{HOST}:{self.port}/postgres"
        self.jdbc_url = f"jdbc:postgresql://{HOST}:{self.port}/postgres"
        # Not under pytest's folder, which only root may enter.
        self._folder = Path(tempfile.mkdtemp(prefix="gateway-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        user = _server_user()
        shutil.chown(self._folder, user)
        data = self._folder / "data"
        initdb = [
            _binary("initdb"),
            "-D",
            str(data),
            "-U",
            USER,
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
        ]
        done = subprocess.run(initdb, user=user, capture_output=True, cwd="/", check=False, env=_ENV)
        if done.returncode != 0:
            raise PostgresError(f"initdb failed: {done.stderr.decode()}")
        options = [word for setting in QUICK for word in ("-c", setting)]
        with (self._folder / "postgres.log").open("wb") as log:
            self._process = subprocess.Popen(
                [_binary("postgres"), "-D", data, "-p", str(self.port), "-k", self._folder, *options],
                user=user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                env=_ENV,
            )
        self._watcher = kill_when_parent_dies(self._process.pid)
        self._wait_until_ready(self._process)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=60).close()
            except psycopg.OperationalError as err:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "postgres.log").read_text()
                    raise PostgresError(f"Postgres did not start:\n{log}") from err
                time.sleep(POLL_INTERVAL_S)
            else:
                return

    def _end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # SIGTERM waits for its clients: a catalog keeps some
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


_ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


def _binary(name: str) -> str:
    packaged = sorted(BINARIES.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = str(packaged[-1]) if packaged else shutil.which(name)
    if found is None:
        raise PostgresError(
            "no Postgres server found: install it (Debian and Ubuntu: the postgresql package)"
        )
    return found


def _server_user() -> str | int:
    """Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return os.geteuid()
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"
