"""
The parent of several workers on one machine, which starts, restarts and stops them.

Workers share the ingest port and the admin port. Each has its own data folder and peer port, and ends when
its parent ends.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from app.process.life import PARENT_ENDED, bind
from app.settings.data_dir import holders_of
from app.settings.model import Settings
from app.settings.networks import Endpoint
from dedupe.model.errors import ConfigurationError, GatewayError, IdentityMismatchError

BACKOFF_S, BACKOFF_MAX_S = 0.5, 10.0
STEADY_S = 30.0
"""After a run of this length, the pause before a restart is BACKOFF_S again."""
FINAL_CODES: Mapping[int, type[GatewayError]] = {2: ConfigurationError, 3: IdentityMismatchError}
"""Exit codes after which a worker is not restarted; see app.cli.console."""

FOLDER_WAIT_S, FOLDER_POLL_S = 60.0, 0.1
"""The wait for a worker of a killed parent, which locks its data folder until it stops."""

PR_SET_PDEATHSIG = 1

logger = structlog.get_logger(__name__)


class Workers:
    """The workers of one machine."""

    def __init__(self, command: Sequence[str], settings: Settings, count: int) -> None:
        """
        Check the settings; `run` starts the workers.

        Args:
            command: starts one worker, which listens on shared ports.
            settings: the settings of all workers.
            count: number of workers, n >= 1.

        Raises:
            ConfigurationError: the settings are those of a single gateway.
        """
        if settings.log.kind != "kafka":
            raise ConfigurationError(
                "--workers needs GATEWAY_LOG=kafka: the embedded log is for one process, which owns its file"
            )
        if settings.group.peer_address:
            raise ConfigurationError(
                "--workers and GATEWAY_PEER_ADDRESS exclude each other: the address is one worker's"
            )
        self._command = command
        self._settings = settings
        self._count = count
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """
        Run the workers until a signal; a second one ends them at once.

        Raises:
            ConfigurationError, IdentityMismatchError: a worker has ended with it; all are stopped.
        """
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._pass_on, number)
        try:
            with ExitStack() as stack:
                ports = [
                    stack.enter_context(bind(host, port, send_timeout_s=1, is_shared=True)).getsockname()[1]
                    for host, port in (
                        (self._settings.gateway.host, self._settings.gateway.port),
                        (self._settings.admin.host, self._settings.admin.port),
                    )
                ]
                async with asyncio.TaskGroup() as tasks:
                    for worker in range(self._count):
                        tasks.create_task(self._keep(worker, ports))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for process in self._processes.values():
                process.kill()  # after an error; otherwise all have ended
            for number in numbers:
                loop.remove_signal_handler(number)

    def _pass_on(self, number: signal.Signals) -> None:
        """Pass a signal on to every worker."""
        self._is_stopping = True
        self._stop.set()
        for process in self._processes.values():
            process.send_signal(number)

    async def _keep(self, worker: int, ports: Sequence[int]) -> None:
        """Run one worker, and restart it, until all are stopped. Raises the errors of FINAL_CODES."""
        loop = asyncio.get_running_loop()
        pause_s = BACKOFF_S
        await self._wait_for_folder(worker)
        while not self._is_stopping:
            began = loop.time()
            code = await self._run_once(worker, ports)
            if self._is_stopping:
                return
            if (error := FINAL_CODES.get(code)) is not None:
                raise error(f"worker {worker} ended with exit code {code}, see above")
            if loop.time() - began >= STEADY_S:
                pause_s = BACKOFF_S
            logger.error("worker ended, restarting it", worker=worker, code=code, pause_s=pause_s)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    async def _wait_for_folder(self, worker: int) -> None:
        """Wait until a worker of an earlier parent has stopped; after FOLDER_WAIT_S the new worker fails."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FOLDER_WAIT_S
        is_logged = False
        while not self._is_stopping and (processes := holders_of(self._folder_of(worker))):
            if loop.time() > deadline:
                return
            if not is_logged:
                logger.warning(
                    "data folder of a worker is still in use, waiting", worker=worker, by=processes
                )
                is_logged = True
            await self._pause(FOLDER_POLL_S)

    async def _run_once(self, worker: int, ports: Sequence[int]) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment(worker, ports), preexec_fn=_end_with_parent
        )
        self._processes[worker] = process
        if self._is_stopping:
            process.terminate()
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                del self._processes[worker]

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    def _folder_of(self, worker: int) -> Path:
        return Path(self._settings.log.data_dir) / f"worker-{worker}"

    def _environment(self, worker: int, ports: Sequence[int]) -> dict[str, str]:
        settings = self._settings
        host, port = settings.group.peer_listen or Endpoint("127.0.0.1", 0)
        own = {
            "WORKER_ID": f"{settings.group.worker_id}-{worker}",
            "DATA_DIR": str(self._folder_of(worker)),
            "PEER_LISTEN": str(Endpoint(host, port and port + worker)),
            "PORT": str(ports[0]),
            "ADMIN_PORT": str(ports[1]),
        }
        return os.environ | {f"GATEWAY_{name}": value for name, value in own.items()}


async def run_workers(command: Sequence[str], settings: Settings, count: int) -> None:
    """Run the workers of one machine; see Workers."""
    await Workers(command, settings, count).run()


def workers_of(text: str) -> int:
    """Parse the number of workers; `auto` is one for each processor. Raises ConfigurationError."""
    if text == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"--workers must be a number from 1 on, or auto, not {text!r}")
    return int(text)


def _end_with_parent() -> None:
    """Have the kernel stop this process when its parent ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, PARENT_ENDED)
