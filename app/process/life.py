"""
The life of the process: a server, the lanes and background tasks in one event loop, and the admin port's
server in another, until a signal.

After the first SIGTERM or SIGINT, or the end of a worker's parent, the process is not ready, new requests are
answered with 503, lanes finish their queues, and servers close. A second signal ends the process at once, as
safely as a crash: only committed events are acknowledged, and the next start recovers from the log.
"""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from app.process.gate import Gate
from app.telemetry.stderr import drain_stderr
from dedupe.model.errors import ConfigurationError, GatewayError
from dedupe.router import Router
from dedupe.storage.kept_fences import KeptFences

SIGNAL_EXIT_CODE = 128
"""The exit code after a second signal is this plus the signal's number, as in shells."""

PARENT_ENDED = signal.SIGUSR1
"""The kernel sends it to a worker whose parent has ended, possibly once for each thread of the parent."""

DRAIN_LINGER_S = 0.5
"""How long a gateway that stops still answers 503, so that clients use another one."""

BEGIN_S, BEGIN_POLL_S = 3.0, 0.02
"""How long a process that goes on after a plan, and is to stop, may take until its partitions serve."""

BACKLOG = 2048

FILES_RESERVED = 1024
"""Open files of the log, brokers, the admin port and refused connections."""

HTTPProtocol: TypeAlias = Callable[..., asyncio.Protocol] | str
"""Creates the protocol of a connection, or is uvicorn's name of a protocol."""

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """A uvicorn server that does not handle signals: `supervise` does, for all servers."""

    def __init__(
        self, app: ASGIApp, *, http: HTTPProtocol = "httptools", keep_alive_s: float, stop_timeout_s: float
    ) -> None:
        """Prepare to serve one application; `http` creates the protocol of each connection."""
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, http),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=round(keep_alive_s),
                timeout_graceful_shutdown=round(stop_timeout_s),
                backlog=BACKLOG,
            )
        )

    def close_keepalive_connections(self) -> None:
        """End each connection with its next answer, so that its client connects to another gateway."""
        connection_close = (b"connection", b"close")
        self.config.encoded_headers.append(connection_close)
        self.server_state.default_headers = [*self.server_state.default_headers, connection_close]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals."""
        yield


class ThreadServer(Server):
    """A server in a thread with an event loop of its own, which answers while the caller's loop is busy."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit` or cancelled, then end the thread; the caller's loop is not blocked."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="admin") as thread:
            running = loop.run_in_executor(thread, self._run, sockets)
            try:
                await asyncio.shield(running)
            finally:
                self.should_exit = True
                await asyncio.wait([running])

    def _run(self, sockets: list[socket.socket] | None) -> None:
        # uvloop closes connections for which no file descriptor is left; asyncio logs each, and hangs on them
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(super().serve(sockets))


def allow_connections(wanted: int, *, index_files: int) -> int:
    """
    Raise this process's limit of open files for connections and indexes, up to the hard limit.

    Args:
        wanted: the number of connections.
        index_files: the number of open files of full indexes.

    Returns:
        The possible number of connections. If the hard limit is too low, at least half of the limit, since
        most indexes have fewer files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = FILES_RESERVED + index_files
    needed = wanted + reserved
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = min(wanted, max(soft // 2, soft - reserved))
    logger.warning(
        "the hard limit of open files is too low for all connections and full indexes: raise it",
        limit=soft,
        needed=needed,
        connections_wanted=wanted,
        connections_possible=possible,
    )
    return possible


def first_of(group: BaseExceptionGroup[GatewayError]) -> GatewayError:
    """Return the first error of a group, which may have groups in it."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


def bind(host: str, port: int, *, send_timeout_s: float, is_shared: bool = False) -> socket.socket:
    """
    Bind an address without listening; other workers may bind a shared one, too.

    Its connections inherit TCP_USER_TIMEOUT, the deadline for bytes that the client does not read. Without
    this option, which only Linux has, the connection's keep-alive limits them.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            timeout_ms = round(send_timeout_s * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        listener.bind((host, port))
    except OSError as err:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host}:{port}: {err.strerror or err}") from err
    return listener


def url_of(listener: socket.socket) -> str:
    """Return a URL that reaches the listener from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets; a second signal except PARENT_ENDED ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if not stop.is_set():
            logger.info("stopping", signal=number.name)
            stop.set()
        elif number != PARENT_ENDED:
            logger.error("stopped by a second signal", signal=number.name)
            drain_stderr()
            os._exit(SIGNAL_EXIT_CODE + number)

    numbers = (signal.SIGTERM, signal.SIGINT, PARENT_ENDED)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Lanes(Protocol):
    """Runs the lanes of this process."""

    async def run(self) -> None:
        """Run them until cancelled. Raises errors that end the process."""

    async def hand_over(self) -> bool:
        """Move all lanes to other workers, bounded in time; return False if there are none."""

    async def go_on(self) -> None:
        """
        Prepare for the next round of this process: wait until no other worker needs these lanes, bounded in
        time, and keep the place in the group.
        """

    async def finish(self, limit_s: float) -> None:
        """Let all lanes finish their queues within `limit_s` seconds, and end them."""


class Servers:
    """The servers of a process."""

    def __init__(self, servers: Sequence[tuple[Server, socket.socket]]) -> None:
        """Serve nothing before `run`."""
        self._servers = servers
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Serve until `end`, or cancelled."""
        try:
            async with asyncio.TaskGroup() as running:
                for server, listener in self._servers:
                    running.create_task(server.serve([listener]))
        finally:
            self._ended.set()

    def close_keepalive_connections(self) -> None:
        """See Server."""
        for server, _ in self._servers:
            server.close_keepalive_connections()

    async def end(self) -> None:
        """Accept nothing more, and wait until requests are answered, or the time for that is over."""
        for server, _ in self._servers:
            server.should_exit = True
        await self._ended.wait()


class Turn:
    """How a round of a process ends although the process goes on: the topic is being divided."""

    def __init__(self, gate: Gate, fences: KeptFences[Any], *, answer_s: float) -> None:
        """
        Keep the gate as it is.

        Args:
            gate: that of the ingest port.
            fences: the log's: those of the lanes that serve now are kept for the next round.
            answer_s: how long answers of requests that are inside may take.
        """
        self.is_due = asyncio.Event()
        self.owned: list[int] | None = None
        """Clean partitions that this process served when it left off; None before."""
        self._gate = gate
        self._fences = fences
        self._answer_s = answer_s

    async def leave_off(self, router: Router, lanes: Lanes, *, drain_timeout_s: float) -> None:
        """Have new requests wait, answer all others, and end the lanes."""
        logger.info("the topic is being divided: requests wait until all of its partitions are known")
        router.is_paused = True
        self._gate.close()
        await self._gate.wait_until_empty(self._answer_s)
        await lanes.go_on()
        self.owned = [lane.partition for lane in router.lanes if lane.is_serving]
        self._fences.keep()
        router.drain()
        await lanes.finish(drain_timeout_s)


async def supervise(
    router: Router,
    lanes: Lanes,
    servers: Servers,
    background_tasks: Sequence[Coroutine[Any, Any, None]],
    *,
    stop: asyncio.Event,
    turn: Turn,
    drain_timeout_s: float,
    linger_s: float,
) -> None:
    """
    Run one round until `stop` or its turn, then end it in order; at `stop` the servers, too.

    A round that goes on after a plan is not stopped before its partitions serve, within BEGIN_S: until then
    clients wait in front of it, and no other worker is known that could take its lanes.

    Raises:
        ExceptionGroup: a lane or background task failed finally; everything else was cancelled.
    """
    async with asyncio.TaskGroup() as running:
        background = [running.create_task(task) for task in background_tasks]
        running_lanes = running.create_task(lanes.run())
        await first_set(stop, turn.is_due)
        if stop.is_set():
            await _begin(router)
            router.is_leaving = True
            if await lanes.hand_over():  # other workers serve; open connections are still answered
                servers.close_keepalive_connections()
            else:
                router.drain()
                await lanes.finish(drain_timeout_s)
            await asyncio.sleep(linger_s)
            await servers.end()
            router.drain()
            await lanes.finish(drain_timeout_s)
        else:
            await turn.leave_off(router, lanes, drain_timeout_s=drain_timeout_s)
        running_lanes.cancel()
        for task in background:
            task.cancel()


def goes_on(stop: asyncio.Event, owned: Sequence[int] | None) -> bool:
    """
    Whether another round of the process begins.

    Args:
        stop: set once the process is to end.
        owned: as Turn has it after the last round, which may have ended because of `stop`, and then is None.
            Who has left off for a plan ends its turn although it is to stop: others wait for what it owns.
    """
    return owned is not None or not stop.is_set()


async def _begin(router: Router) -> None:
    """Wait until all partitions of a round that goes on after a plan have served, within BEGIN_S."""
    with suppress(TimeoutError):
        async with asyncio.timeout(BEGIN_S):
            while router.goes_on and not router.has_served:  # noqa: ASYNC110 - of all lanes' states
                await asyncio.sleep(BEGIN_POLL_S)


async def first_set(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def unless_set(stop: asyncio.Event, doing: Coroutine[Any, Any, T], *, grace_s: float = 0.0) -> T | None:
    """Return what a coroutine returns; None if it goes on `grace_s` s after `stop`, and is cancelled."""
    task, stopping = asyncio.ensure_future(doing), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((task,), timeout=grace_s)
        return await task if task.done() else None
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
