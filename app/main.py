"""The composition root: builds the gateway's parts on an open log, and runs them until a signal."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from datetime import date
from functools import partial
from random import Random
from socket import socket
from typing import Any, NamedTuple, TypeAlias

import structlog
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from app.admin.application import AdminContext, create_admin, create_probes
from app.admin.certificate_metrics import CertificateCollector
from app.admin.clock_metrics import ClockCollector
from app.admin.edge_metrics import EdgeCollector
from app.admin.history import History
from app.admin.ingest_loop import IngestLoop, LoopCollector
from app.admin.limit_metrics import LimitCollector
from app.admin.tail import Tail
from app.auth.ingress_limits import IngressLimits
from app.auth.key_entries import check_key_file
from app.auth.key_file import LOOK_INTERVAL_S, KeyFile
from app.auth.write_keys import WriteKeys
from app.build import (
    Alarms,
    build_admin_port,
    build_admin_problems,
    build_ingest,
    build_ingress_limits,
    build_inputs,
    build_observed,
    build_port,
    build_problems,
    build_replays,
    build_router,
)
from app.group import GroupLanes
from app.http.penalties import DELAY_S
from app.http.port import SEND_TIMEOUT_S, Port
from app.http.problems import Problems
from app.http.protocol import EdgeProtocol
from app.http.request_context import MemoryReservationMiddleware, RequestContext
from app.http.request_metrics import RequestMetrics
from app.ingest.application import create_edge
from app.ingest.receipts import CODES, REASONS
from app.ingest.routes.events import Ingest
from app.inputs.input_file import inputs_of
from app.native_module import native_version
from app.process.background_tasks import announce, tell_outages, trim_log
from app.process.clock_check import follow_wall_clock, keep_time
from app.process.interpreter import tune_interpreter
from app.process.life import (
    DRAIN_LINGER_S,
    Lanes,
    Server,
    ThreadServer,
    bind,
    first_of,
    stop_signals,
    supervise,
    url_of,
)
from app.process.setting_watch import SettingWatch
from app.settings.data_dir import locked
from app.settings.model import Settings
from app.stores import (
    OpenLog,
    create_indexes,
    membership_of,
    open_input,
    open_log,
    own_topic_ids,
)
from app.telemetry.traces import Traces, tracing
from dedupe.cluster.input_shares import LoneShares
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.errors import ConfigurationError, GatewayError
from dedupe.model.identity import Identity
from dedupe.partition.snapshotter import Snapshotter
from dedupe.partition.supervisor import LocalLanes
from dedupe.router import Router
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.snapshots.store import SnapshotStore

BackgroundTask: TypeAlias = Coroutine[Any, Any, None]
"""Runs until cancelled."""

logger = structlog.get_logger(__name__)


class Parts(NamedTuple):
    """The parts of a gateway's servers and background tasks."""

    settings: Settings
    opened: OpenLog
    identity: Identity
    clock: SystemClock
    ingress: IngressLimits
    admin_context: AdminContext
    ingest_loop: IngestLoop
    traces: Traces | None

    @property
    def router(self) -> Router:
        """All lanes behind one call."""
        return self.admin_context.router


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
        crashpoint: called after each commit step; tests end the process in it.

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
        input_specs = inputs_of(settings)
        listeners = [
            stack.enter_context(bind(host, port, send_timeout_s=SEND_TIMEOUT_S, is_shared=is_sharing_ports))
            for host, port in settings.addresses
        ]
        opened = await open_log(settings, crashpoint or no_crashpoint, stop, clock, accepted_day=accepted_day)
        if opened is None:
            return
        stack.push_async_callback(opened.store.close)
        settings = settings.with_partitions(opened.division.layout.partitions)
        indexes = create_indexes(settings, opened.division.layout, clock, crashpoint or no_crashpoint)
        stack.callback(indexes.close)
        # Here, since the grace of removed keys ends by the clock, which is checked now.
        ingress = build_ingress_limits(settings, clock, index_files=indexes.open_files_max)
        traces = stack.enter_context(_tracing_of(settings))
        identity = Identity(settings.gateway.identity_key)
        setting_watch = SettingWatch(opened.inspection, opened.inspect)
        router = build_router(
            settings,
            opened.store if traces is None else traces.appends_of(opened.store),
            indexes,
            identity=identity,
            clock=clock,
            division=opened.division,
            alarms=Alarms(partial(follow_wall_clock, clock), setting_watch.doubt),
            crashpoint=crashpoint,
        )
        group = _group_of(settings, opened, router, clock, stack)
        admin_context = _admin_context_of(
            settings, router, ingress, group, clock, setting_watch, indexes.snapshots
        )
        parts = Parts(settings, opened, identity, clock, ingress, admin_context, IngestLoop(), traces)
        ingest = build_ingest(
            settings,
            router,
            identity=identity,
            ingress=ingress,
            clock=clock,
            earlier_ignore=opened.earlier_ignore,
            observer=admin_context.tail,
            penalty_s=DELAY_S,
        )
        if settings.gateway.observe:
            ingest = replace(ingest, observed=build_observed(settings, opened.store, clock))
        if input_specs:
            inputs = build_inputs(
                settings,
                ingest,
                input_specs,
                opened.store,
                partial(open_input, settings),
                own_topic_ids,
                LoneShares() if group is None else group.input_shares,
            )
            parts = parts._replace(admin_context=replace(admin_context, inputs=inputs))
        servers = list(zip(_build_servers(parts, ingest), listeners, strict=True))
        background_tasks = _background_tasks(parts, *map(url_of, listeners[:2]))
        if (native := ingest.identifier.native) is not None:
            background_tasks.append(native.use.watch())
        if ingest.observed is not None:
            background_tasks.append(ingest.observed.run())
        tune_interpreter()
        lanes = group or LocalLanes(router.all_lanes)
        await _supervise(settings, router, lanes, servers, background_tasks, stop)
        logger.info("stopped")


def _admin_context_of(
    settings: Settings,
    router: Router,
    ingress: IngressLimits,
    group: GroupLanes | None,
    clock: Clock,
    setting_watch: SettingWatch,
    snapshots: SnapshotStore | None,
) -> AdminContext:
    return AdminContext(
        router,
        EdgeCollector(ingress),
        group,
        settings.group.worker_id,
        Tail(clock, codes=CODES, reasons=REASONS, is_always_held=settings.gateway.is_development),
        History(clock),
        setting_watch=setting_watch,
        snapshotter=None
        if snapshots is None
        else Snapshotter(
            router.all_lanes, snapshots, clock=clock, rng=Random(), interval_s=settings.snapshots.interval
        ),
    )


def _tracing_of(settings: Settings) -> AbstractContextManager[Traces | None]:
    """Return what creates spans while it is open, if the settings ask for them."""
    return tracing(
        is_on=settings.advanced.traces, system=settings.log.kind, instance=settings.group.worker_id
    )


def _group_of(
    settings: Settings, opened: OpenLog, router: Router, clock: Clock, stack: AsyncExitStack
) -> GroupLanes | None:
    """Return who runs the router's lanes as the group assigns them; None in a gateway that is alone."""
    if settings.group.peer_listen is None:
        return None
    host, port = settings.group.peer_listen
    listener = stack.enter_context(bind(host, port, send_timeout_s=SEND_TIMEOUT_S))
    membership = membership_of(opened, settings, clock)
    group = GroupLanes(settings, router.all_lanes, membership, listener, clock, lambda: router.has_disk_room)
    router.reach_by(group.routes)
    router.standing = group.manager.standing
    return group


def _build_servers(parts: Parts, ingest: Ingest) -> Iterator[Server]:
    """Yield the servers of the ingest port, of the admin port, and of the probes if they have one."""
    settings, refusals = parts.settings, parts.admin_context.refusals
    metrics, problems = RequestMetrics(refusals), build_problems(settings, refusals)
    problems.watch(partial(_note_refusal, parts.ingress.write_keys, parts.admin_context.tail))
    yield _ingest_server(parts, ingest, problems, metrics)
    native = ingest.identifier.native
    admin_context = replace(
        parts.admin_context,
        native=None if native is None else native.use,
        use=ingest.use,
        observed=ingest.observed,
        replay_at=build_replays(ingest, parts.opened.store, settings.log.topics[1]),
    )
    registry = _registry_of(parts, metrics, admin_context)
    admin_problems = build_admin_problems()
    admin = create_admin(
        admin_context,
        settings=settings,
        identity=parts.identity,
        store=parts.opened.store,
        clock=parts.clock,
        problems=admin_problems,
        registry=registry,
        ingest_loop=parts.ingest_loop,
    )
    yield _admin_server(admin, settings, admin_problems)
    if settings.admin.probe_listen is not None:
        probes = create_probes(
            parts.router,
            settings=settings,
            problems=admin_problems,
            registry=registry,
            ingest_loop=parts.ingest_loop,
        )
        yield _admin_server(probes, settings, admin_problems)


def _note_refusal(write_keys: WriteKeys, tail: Tail, code: str, context: RequestContext | None) -> None:
    """Count a refusal for its write key, and offer it to the live tail."""
    if context is not None and context.write_key:
        write_keys.note_refused(context.write_key)
    tail.refused(code, context)


def _registry_of(parts: Parts, metrics: RequestMetrics, admin_context: AdminContext) -> CollectorRegistry:
    """Return the collectors of `/metrics`."""
    registry = CollectorRegistry()
    registry.register(metrics)
    registry.register(LimitCollector(parts.settings))
    registry.register(CertificateCollector(parts.settings))
    registry.register(LoopCollector(parts.ingest_loop))
    registry.register(ClockCollector(parts.clock))
    admin_context.register(registry)
    return registry


def _ingest_server(parts: Parts, ingest: Ingest, problems: Problems, metrics: RequestMetrics) -> Server:
    settings, ingress = parts.settings, parts.ingress
    edge = create_edge(
        ingest,
        memory=ingress.memory,
        problems=problems,
        metrics=metrics,
        public_host=settings.gateway.public_host,
    )
    if parts.traces is not None:
        edge = parts.traces.requests_of(edge)
    return _server(Server, edge, build_port(settings, ingress, problems=problems, metrics=metrics), settings)


def _admin_server(app: ASGIApp, settings: Settings, problems: Problems) -> Server:
    port = build_admin_port(problems=problems)
    return _server(ThreadServer, MemoryReservationMiddleware(app, port.memory), port, settings)


def _server(kind: type[Server], app: ASGIApp, port: Port, settings: Settings) -> Server:
    return kind(
        app,
        http=partial(EdgeProtocol, port=port),
        keep_alive_s=settings.limits.keep_alive,
        stop_timeout_s=settings.limits.answer_timeout + 1,
    )


async def _supervise(
    settings: Settings,
    router: Router,
    lanes: Lanes,
    servers: Sequence[tuple[Server, socket]],
    background_tasks: Sequence[BackgroundTask],
    stop: asyncio.Event,
) -> None:
    """Run everything until stopped; raise the first expected error without its group."""
    try:
        await supervise(
            router,
            lanes,
            servers,
            background_tasks,
            stop=stop,
            drain_timeout_s=settings.advanced.drain_timeout,
            linger_s=DRAIN_LINGER_S,
        )
    except ExceptionGroup as group:  # not `except*`: until Python 3.11.4 it groups what is raised in it
        known, unforeseen = group.split(GatewayError)
        if known is None or unforeseen is not None:
            raise
        raise first_of(known) from None


def _background_tasks(parts: Parts, url: str, admin_url: str) -> list[BackgroundTask]:
    settings, router, embedded = parts.settings, parts.router, parts.opened.embedded
    refusals = parts.admin_context.refusals
    running: list[BackgroundTask] = [
        parts.ingest_loop.heartbeat(),
        parts.admin_context.setting_watch.run(router.all_lanes),
        parts.admin_context.history.keep(lambda: router.totals, lambda: refusals.before_events),
        announce(
            router,
            settings,
            url=url,
            admin_url=admin_url,
            native_version=native_version(settings.gateway.native),
        ),
        tell_outages(router),
        parts.ingress.disk.watch(router),
        parts.ingress.files.watch(),
    ]
    running.extend(
        each.run()
        for each in (parts.admin_context.snapshotter, parts.admin_context.inputs)
        if each is not None
    )
    if embedded is not None:
        running.append(trim_log(router, settings, parts.clock, embedded.trim))
        running.append(keep_time(embedded, settings.log.topic, parts.clock))
    if isinstance(parts.ingress.write_keys, KeyFile):
        running.append(parts.ingress.write_keys.watch(LOOK_INTERVAL_S))
    return running
