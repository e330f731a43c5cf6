"""The composition root: serves by one round after the other on an open log, until a signal."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack, closing
from datetime import date
from functools import partial
from socket import socket

import structlog
from starlette.types import ASGIApp

from app.admin.ingest_loop import IngestLoop
from app.admin.tail import Tail
from app.auth.key_entries import check_key_file
from app.auth.write_keys import WriteKeys
from app.build import (
    build_admin_port,
    build_admin_problems,
    build_ingress_limits,
    build_port,
    build_problems,
)
from app.going_on import go_on_with
from app.group import GroupBefore, GroupLanes
from app.http.port import SEND_TIMEOUT_S, Port
from app.http.protocol import EdgeProtocol
from app.http.refusal_counts import RefusalCounts
from app.http.request_context import MemoryReservationMiddleware, RequestContext
from app.http.request_metrics import RequestMetrics
from app.ingest.receipts import CODES, REASONS
from app.inputs.input_file import inputs_of
from app.process.background_tasks import open_gate
from app.process.gate import Gate
from app.process.interpreter import tune_interpreter
from app.process.life import (
    BEGIN_S,
    DRAIN_LINGER_S,
    Server,
    Servers,
    ThreadServer,
    Turn,
    bind,
    first_of,
    goes_on,
    stop_signals,
    supervise,
    unless_set,
    url_of,
)
from app.process.plan_progress import PlanProgress
from app.round import House, Round, build_plan_watch, build_round, index_names
from app.settings.data_dir import locked
from app.settings.model import Settings
from app.stores import OpenLog, create_indexes, open_log
from app.telemetry.traces import Traces, tracing
from dedupe.model.clock import SystemClock
from dedupe.model.errors import ConfigurationError, DividedAnewError, GatewayError, RetriableError
from dedupe.storage.log import Crashpoint, no_crashpoint

logger = structlog.get_logger(__name__)


async def serve(
    settings: Settings,
    *,
    accepted_day: date | None = None,
    is_sharing_ports: bool = False,
    crashpoint: Crashpoint | None = None,
) -> None:
    """
    Run the gateway until SIGTERM or SIGINT.

    Args:
        settings: complete and free of contradictions.
        accepted_day: the date in UTC for which the operator vouches for the clock.
        is_sharing_ports: whether other workers of this machine listen on the same ports.
        crashpoint: called after each step of a commit, and of a plan; tests end the process in it.

    Raises:
        ConfigurationError: it must not start like this.
        IdentityMismatchError: the log was written under another secret or partition count.
        RetriableError: the log was not reachable for GATEWAY_START_TIMEOUT.
    """
    if not __debug__:
        raise ConfigurationError("python -O removes the checks that protect the log: start without it")
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        stack.enter_context(locked(settings.log.data_dir))
        for warning in settings.warnings():
            logger.warning(warning)
        clock = SystemClock()
        if settings.gateway.write_keys_file is not None:  # now, since the log may be long in coming
            check_key_file(settings.gateway.write_keys_file)
        inputs_of(settings)
        listeners = [
            stack.enter_context(bind(host, port, send_timeout_s=SEND_TIMEOUT_S, is_shared=is_sharing_ports))
            for host, port in settings.addresses
        ]
        peer_listener = None
        if settings.group.peer_listen is not None:
            host, port = settings.group.peer_listen
            peer_listener = stack.enter_context(bind(host, port, send_timeout_s=SEND_TIMEOUT_S))
        traces = stack.enter_context(_tracing_of(settings))
        process = _Process(settings, stop, clock, listeners, peer_listener, traces, crashpoint)
        try:
            async with asyncio.TaskGroup() as running:
                running.create_task(process.run(running, accepted_day))
        except ExceptionGroup as group:  # not `except*`: until Python 3.11.4 it groups what is raised in it
            known, unforeseen = group.split(GatewayError)
            if known is None or unforeseen is not None:
                raise
            raise first_of(known) from None
        logger.info("stopped")


class _Process:
    """Rounds, one after the other, behind the same servers."""

    def __init__(
        self,
        settings: Settings,
        stop: asyncio.Event,
        clock: SystemClock,
        listeners: Sequence[socket],
        peer_listener: socket | None,
        traces: Traces | None,
        crashpoint: Crashpoint | None,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._clock = clock
        self._listeners = listeners
        self._peer_listener = peer_listener
        self._traces = traces
        self._crashpoint = crashpoint
        self._reach = crashpoint or no_crashpoint
        self._house: House | None = None  # until the log is open
        self._gates: list[Gate] = []
        self._servers = Servers([])

    async def run(self, running: asyncio.TaskGroup, accepted_day: date | None) -> None:
        """Run rounds until stopped; the servers run in `running` from the first one on."""
        before: GroupBefore | None = None
        owned: Sequence[int] | None = None
        opened: OpenLog | None = None
        this: Round | None = None
        background: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as logs:
            while goes_on(self._stop, owned):
                opening = self._opened(logs, opened, owned, accepted_day)
                grace_s = 0.0 if owned is None else BEGIN_S  # others decide what is not decided by then
                opened = await unless_set(self._stop, opening, grace_s=grace_s)
                if opened is None:
                    break
                layout = opened.division.layout
                settings = self._settings.with_partitions(layout.partitions)
                indexes = create_indexes(settings, layout, self._clock, self._reach)
                with closing(indexes):
                    if self._house is None:
                        # Here, since the grace of removed keys ends by the clock, which is checked now.
                        self._house = self._build_house(settings, indexes.open_files_max)
                    urls = [*map(url_of, self._listeners[:2])]
                    this = build_round(settings, opened, indexes, self._house, urls, before)
                    indexes.keep_only(settings.log.topic, index_names(this.router, layout))
                    this.router.goes_on = bool(self._gates)
                    if not self._gates:
                        self._build_servers(self._house, this.apps)
                        background = [
                            running.create_task(self._servers.run()),
                            running.create_task(self._house.ingest_loop.heartbeat()),
                        ]
                        tune_interpreter()
                    for gate, app in zip(self._gates, this.apps, strict=True):
                        gate.app = app
                    self._house.plan_progress.follow(layout.plan)
                    owned = await self._run_round(settings, opened, this)
                    before = this.lanes.left if isinstance(this.lanes, GroupLanes) else None
                    self._house.plan_progress.wait()
            if this is not None and isinstance(this.lanes, GroupLanes):
                await this.lanes.leave()
        for gate in self._gates[:1]:
            gate.open()
        if background:
            await self._servers.end()
        for task in background:
            task.cancel()

    async def _opened(
        self,
        logs: AsyncExitStack,
        opened: OpenLog | None,
        owned: Sequence[int] | None,
        accepted_day: date | None,
    ) -> OpenLog:
        """Return the log for the next round, open: that of the last one, if that has left it as it should."""
        if opened is not None and owned is not None:
            try:
                gone_on = await go_on_with(opened, self._settings, self._clock, owned)
                self._reach("settled")
                return gone_on
            except RetriableError as err:
                logger.warning("the log is opened again", reason=str(err))
        await logs.aclose()
        opened = await open_log(
            self._settings,
            self._reach,
            self._clock,
            accepted_day=accepted_day,
            owned=owned or (),
        )
        logs.push_async_callback(opened.store.close)
        return opened

    async def _run_round(self, settings: Settings, opened: OpenLog, this: Round) -> Sequence[int] | None:
        """
        Run a round until stopped, or its turn.

        Returns:
            See Turn.owned; None also if it was fenced by the plan's other owners.
        """
        gate = self._gates[0]
        turn = Turn(gate, opened.fences, answer_s=settings.limits.answer_timeout)
        background_tasks = [*this.background_tasks, open_gate(gate, this.router, opened.fences, turn.is_due)]
        if opened.plans is not None:
            assert self._house is not None
            watch = build_plan_watch(settings, opened, this.router, self._house, turn.is_due)
            background_tasks.append(watch.run())
        try:
            await supervise(
                this.router,
                this.lanes,
                self._servers,
                background_tasks,
                stop=self._stop,
                turn=turn,
                drain_timeout_s=settings.advanced.drain_timeout,
                linger_s=DRAIN_LINGER_S,
            )
        except ExceptionGroup as group:
            if group.split(DividedAnewError)[1] is not None:
                raise
            gate.close()
            this.router.is_paused = True
            this.router.drain()
            logger.warning("the log is opened again", reason=str(first_of(group)))
            return None
        self._reach("left_off")
        return turn.owned

    def _build_house(self, settings: Settings, index_files: int) -> House:
        refusals = RefusalCounts()
        ingress = build_ingress_limits(settings, self._clock, index_files=index_files)
        problems = build_problems(settings, refusals)
        tail = Tail(self._clock, codes=CODES, reasons=REASONS, is_always_held=settings.gateway.is_development)
        problems.watch(partial(_note_refusal, ingress.write_keys, tail))
        return House(
            self._clock,
            ingress,
            RequestMetrics(refusals),
            problems,
            build_admin_problems(),
            refusals,
            tail,
            IngestLoop(),
            self._traces,
            self._crashpoint,
            PlanProgress(self._clock),
            self._peer_listener,
        )

    def _build_servers(self, house: House, apps: Sequence[ASGIApp]) -> None:
        """Build a server and a gate for each application: the ingest's, the admin port's, the probes'."""
        settings, wait_s = self._settings, self._settings.limits.answer_timeout
        self._gates = [Gate(app, wait_s=wait_s) for app in apps]
        port = build_port(settings, house.ingress, problems=house.problems, metrics=house.metrics)
        servers = [_server(Server, self._gates[0], port, settings)]
        for gate in self._gates[1:]:
            admin_port = build_admin_port(problems=house.admin_problems)
            app = MemoryReservationMiddleware(gate, admin_port.memory)
            servers.append(_server(ThreadServer, app, admin_port, settings))
        self._servers = Servers([*zip(servers, self._listeners, strict=True)])


def _note_refusal(write_keys: WriteKeys, tail: Tail, code: str, context: RequestContext | None) -> None:
    """Count a refusal for its write key, and offer it to the live tail."""
    if context is not None and context.write_key:
        write_keys.note_refused(context.write_key)
    tail.refused(code, context)


def _server(kind: type[Server], app: ASGIApp, port: Port, settings: Settings) -> Server:
    return kind(
        app,
        http=partial(EdgeProtocol, port=port),
        keep_alive_s=settings.limits.keep_alive,
        stop_timeout_s=settings.limits.answer_timeout + 1,
    )


def _tracing_of(settings: Settings) -> AbstractContextManager[Traces | None]:
    """Return what creates spans while it is open, if the settings ask for them."""
    return tracing(
        is_on=settings.advanced.traces, system=settings.log.kind, instance=settings.group.worker_id
    )
