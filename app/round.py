"""
One round of a process: the parts that stand on an open log, from its opening until the topic is divided anew.

A process has one round, unless a plan divides its topic; its servers, limits and counts outlive rounds.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
from app.auth.key_file import LOOK_INTERVAL_S, KeyFile
from app.build import (
    Alarms,
    build_ingest,
    build_inputs,
    build_replays,
    build_router,
    index_policies,
    with_side_topics,
)
from app.group import GroupBefore, GroupLanes, network_of
from app.http.penalties import DELAY_S
from app.http.problems import Problems
from app.http.refusal_counts import RefusalCounts
from app.http.request_metrics import RequestMetrics
from app.ingest.application import create_edge
from app.ingest.routes.events import Ingest
from app.inputs.input_file import inputs_of
from app.native_module import native_version
from app.peers.peers import Peers
from app.process.background_tasks import announce, tell_outages, trim_log
from app.process.clock_check import follow_wall_clock, keep_time
from app.process.plan_progress import PlanProgress
from app.process.plan_watch import PlanWatch
from app.process.setting_watch import SettingWatch
from app.settings.model import Settings
from app.stores import OpenLog, create_indexes, membership_of, open_input, own_topic_ids
from app.telemetry.traces import Traces
from dedupe.cluster.input_shares import LoneShares
from dedupe.decide.layout import Layout
from dedupe.decide.planned import as_if_cut, heirs_of
from dedupe.decide.resharding import Routing
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.errors import ConfigurationError
from dedupe.model.identity import Identity
from dedupe.partition.preparation import Preparation
from dedupe.partition.snapshotter import Snapshotter
from dedupe.partition.supervisor import LocalLanes
from dedupe.router import Router
from dedupe.storage.index import IndexStore
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.snapshots.store import SnapshotStore

logger = structlog.get_logger(__name__)

BackgroundTask: TypeAlias = Coroutine[Any, Any, None]
"""Runs until cancelled."""


class House(NamedTuple):
    """What outlives the rounds of a process."""

    clock: SystemClock
    ingress: IngressLimits
    metrics: RequestMetrics
    problems: Problems
    admin_problems: Problems
    refusals: RefusalCounts
    tail: Tail
    ingest_loop: IngestLoop
    traces: Traces | None
    crashpoint: Crashpoint | None
    plan_progress: PlanProgress
    peer_listener: socket | None  # None in a gateway that is alone


class Round(NamedTuple):
    """The parts of one round."""

    router: Router
    lanes: GroupLanes | LocalLanes
    apps: list[ASGIApp]  # of the ingest port, of the admin port, and of the probes if they have one
    background_tasks: list[BackgroundTask]


class Parts(NamedTuple):
    """The parts of a gateway's servers and background tasks."""

    settings: Settings
    opened: OpenLog
    identity: Identity
    house: House
    admin_context: AdminContext

    @property
    def router(self) -> Router:
        """All lanes behind one call."""
        return self.admin_context.router


def build_round(
    settings: Settings,
    opened: OpenLog,
    indexes: IndexStore,
    house: House,
    urls: Sequence[str],
    before: GroupBefore | None,
) -> Round:
    """
    Build the parts on an open log; nothing runs yet.

    Args:
        settings: with the partitions that the clean topic has now.
        opened: the log.
        indexes: those of the lanes.
        house: what outlives the round.
        urls: of the ingest port and of the admin port.
        before: how the last round has left the group of workers.
    """
    clock, traces = house.clock, house.traces
    identity = Identity(settings.gateway.identity_key)
    inspect = opened.inspect and partial(opened.inspect, opened.division.layout.partitions_of_log)
    setting_watch = SettingWatch(opened.inspection, inspect)
    router = build_router(
        settings,
        opened.store if traces is None else traces.appends_of(opened.store),
        indexes,
        identity=identity,
        clock=clock,
        division=opened.division,
        alarms=Alarms(partial(follow_wall_clock, clock), setting_watch.doubt),
        crashpoint=house.crashpoint,
    )
    group = _group_of(settings, opened, router, house, before)
    admin_context = _admin_context_of(settings, router, house, group, clock, setting_watch, indexes.snapshots)
    parts = Parts(settings, opened, identity, house, admin_context)
    ingest = build_ingest(
        settings,
        router,
        identity=identity,
        ingress=house.ingress,
        clock=clock,
        earlier_ignore=opened.earlier_ignore,
        observer=admin_context.tail,
        penalty_s=DELAY_S,
    )
    ingest = with_side_topics(ingest, settings, opened.store, clock)
    if input_specs := inputs_of(settings):
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
    background_tasks = _background_tasks(parts, urls)
    if (native := ingest.identifier.native) is not None:
        background_tasks.append(native.use.watch())
    background_tasks += [each.topic.run() for each in (ingest.observed, ingest.samples) if each is not None]
    lanes = group or LocalLanes(router.all_lanes)
    return Round(router, lanes, _apps_of(parts, ingest), background_tasks)


def build_plan_watch(
    settings: Settings,
    opened: OpenLog,
    router: Router,
    house: House,
    is_due: asyncio.Event,
) -> PlanWatch:
    """Return what prepares for a plan, and sets `is_due`; the log is on Kafka. See build_round."""
    assert opened.plans is not None
    topic = settings.log.topics[0]._replace(partitions=router.layout.base)

    @asynccontextmanager
    async def prepare(routing: Routing) -> AsyncIterator[Preparation | None]:
        planned = Layout(routing.base, as_if_cut(routing))
        try:
            store = create_indexes(settings.with_partitions(planned.partitions), planned, house.clock)
        except ConfigurationError as err:
            # It would not start with these partitions either, so it says so while it serves.
            logger.error("this process cannot follow the plan: mend that, or close it", error=str(err))
            yield None
            return
        store.snapshots = None  # nobody has any of these indexes yet
        log_of, context = partial(opened.store.partition_log, topic.name), router.lanes[0].context
        window_policy, session_policy = index_policies(settings, planned, house.clock.now_ms())
        context = replace(context, window_policy=window_policy, session_policy=session_policy)
        try:
            yield Preparation(routing, router.lanes, log_of, context, store, lambda: router.has_disk_room)
        finally:
            await asyncio.to_thread(store.close)

    plan, begun = opened.division.layout.plan, opened.division.layout.open
    return PlanWatch(
        opened.plans,
        topic,
        prepare,
        plan,
        begun,
        house.plan_progress,
        house.clock,
        is_due,
        house.crashpoint or no_crashpoint,
    )


def index_names(router: Router, layout: Layout) -> set[str]:
    """Return the names of the indexes that lanes of the clean topic have, or are to have by an open plan."""
    lanes = [lane.recovery.identity for lane in router.lanes]
    heirs = heirs_of(layout.open) if layout.open is not None else []
    prepared = (lanes[0]._replace(partition=heir.partition, plan=heir.lineage.plan) for heir in heirs)
    return {identity.name for identity in (*lanes, *prepared)}


def _admin_context_of(
    settings: Settings,
    router: Router,
    house: House,
    group: GroupLanes | None,
    clock: Clock,
    setting_watch: SettingWatch,
    snapshots: SnapshotStore | None,
) -> AdminContext:
    return AdminContext(
        router,
        EdgeCollector(house.ingress),
        group,
        settings.group.worker_id,
        house.tail,
        History(clock),
        refusals=house.refusals,
        plan_progress=house.plan_progress,
        setting_watch=setting_watch,
        snapshotter=None
        if snapshots is None
        else Snapshotter(
            router.all_lanes, snapshots, clock=clock, rng=Random(), interval_s=settings.snapshots.interval
        ),
    )


def _group_of(
    settings: Settings, opened: OpenLog, router: Router, house: House, before: GroupBefore | None
) -> GroupLanes | None:
    """Return who runs the router's lanes as the group assigns them; None in a gateway that is alone."""
    if house.peer_listener is None:
        return None
    membership = membership_of(opened, settings, house.clock, before and before.place)
    peers = Peers(
        settings.group.worker_id,
        secret=settings.gateway.identity_key,
        clock=house.clock,
        network=network_of(settings),
        plan=router.layout.plan,
    )
    group = GroupLanes(settings, router, membership, peers, house.peer_listener, house.clock, before=before)
    router.reach_by(group.routes)
    router.standing = group.manager.standing
    return group


def _apps_of(parts: Parts, ingest: Ingest) -> list[ASGIApp]:
    """Return the applications of the ingest port, of the admin port, and of the probes if they have one."""
    settings, house = parts.settings, parts.house
    edge = create_edge(
        ingest,
        memory=house.ingress.memory,
        problems=house.problems,
        metrics=house.metrics,
        public_host=settings.gateway.public_host,
    )
    native = ingest.identifier.native
    admin_context = replace(
        parts.admin_context,
        native=None if native is None else native.use,
        use=ingest.use,
        observed=ingest.observed,
        samples=ingest.samples,
        replay_at=build_replays(ingest, parts.opened.store, settings.log.topics[1]),
    )
    registry = _registry_of(parts, admin_context)
    apps = [
        edge if house.traces is None else house.traces.requests_of(edge),
        create_admin(
            admin_context,
            settings=settings,
            identity=parts.identity,
            store=parts.opened.store,
            clock=house.clock,
            problems=house.admin_problems,
            registry=registry,
            ingest_loop=house.ingest_loop,
        ),
    ]
    if settings.admin.probe_listen is not None:
        probes = create_probes(
            parts.router,
            settings=settings,
            problems=house.admin_problems,
            registry=registry,
            ingest_loop=house.ingest_loop,
        )
        apps.append(probes)
    return apps


def _registry_of(parts: Parts, admin_context: AdminContext) -> CollectorRegistry:
    """Return the collectors of `/metrics`."""
    registry = CollectorRegistry()
    registry.register(parts.house.metrics)
    registry.register(LimitCollector(parts.settings))
    registry.register(CertificateCollector(parts.settings))
    registry.register(LoopCollector(parts.house.ingest_loop))
    registry.register(ClockCollector(parts.house.clock))
    admin_context.register(registry)
    return registry


def _background_tasks(parts: Parts, urls: Sequence[str]) -> list[BackgroundTask]:
    settings, router, embedded = parts.settings, parts.router, parts.opened.embedded
    refusals = parts.admin_context.refusals
    running: list[BackgroundTask] = [
        parts.admin_context.setting_watch.run(router.all_lanes),
        parts.admin_context.history.keep(lambda: router.totals, lambda: refusals.before_events),
        announce(
            router,
            settings,
            url=urls[0],
            admin_url=urls[1],
            native_version=native_version(settings.gateway.native),
        ),
        tell_outages(router),
        parts.house.ingress.disk.watch(router),
        parts.house.ingress.files.watch(),
    ]
    running.extend(
        each.run()
        for each in (parts.admin_context.snapshotter, parts.admin_context.inputs)
        if each is not None
    )
    if embedded is not None:
        running.append(trim_log(router, settings, parts.house.clock, embedded.trim))
        running.append(keep_time(embedded, settings.log.topic, parts.house.clock))
    if isinstance(parts.house.ingress.write_keys, KeyFile):
        running.append(parts.house.ingress.write_keys.watch(LOOK_INTERVAL_S))
    return running
