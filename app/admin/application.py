"""
The admin port: health, metrics and statistics for operators. Never public.

It runs in a thread with an event loop of its own (ADR 0010), so that liveness does not depend on the ingest's
loop. State of the ingest is read in its loop, in one short turn; documents are rendered here.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from app.admin.about import add_about
from app.admin.answers import TokenInvalidError, json_answer
from app.admin.conflict import Comparison
from app.admin.console import add_console
from app.admin.edge_metrics import EdgeCollector
from app.admin.event_routes import HeldEvents, add_events
from app.admin.group import GroupCollector, add_group, group_of, places_of
from app.admin.history import History, add_history
from app.admin.host_check import check_hosts
from app.admin.ingest_loop import IngestLoop
from app.admin.inputs import InputCollector, add_input_controls, add_inputs, inputs_document
from app.admin.lane_metrics import LaneCollector
from app.admin.lookup import Lookup, add_lookup
from app.admin.native_metrics import NativeCollector, native_document
from app.admin.observed import ObservedCollector, SampleCollector, observed_document, samples_document
from app.admin.openapi import add_openapi
from app.admin.partitions import add_partitions
from app.admin.probes import add_probes
from app.admin.quarantine_search import locate
from app.admin.quarantined import Quarantined, add_quarantined, differs_in
from app.admin.replay import ReplayAt, add_replay, no_record
from app.admin.reshard import ReshardCollector, inheritance_of, reshard_document
from app.admin.runbooks import add_runbooks
from app.admin.scopes import READ, Scope, check_scopes
from app.admin.sessions import add_sessions
from app.admin.setting_metrics import SettingCollector
from app.admin.snapshot_metrics import SnapshotCollector
from app.admin.snapshots import add_snapshots
from app.admin.sources import SourceCollector, Sources, add_sources
from app.admin.stats import SCHEMA_VERSION, answers_of, partition_of, refusals_of
from app.admin.tail import Tail
from app.admin.tail_routes import add_tail
from app.admin.verify import add_verify
from app.admin.write_keys import add_write_keys
from app.group import GroupLanes
from app.http.bare_application import bare_application
from app.http.errors import RequestError
from app.http.problems import Problems
from app.http.refusal_counts import RefusalCounts
from app.http.source_use import SourceUse
from app.ingest.duplicate_samples import DuplicateSamples
from app.ingest.observed import Observed
from app.inputs.inputs import Inputs
from app.process.plan_progress import PlanProgress
from app.process.setting_watch import SettingWatch
from app.settings.model import Settings
from app.settings.version import VERSION
from app.telemetry.native_use import NativeUse
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.identity import Identity
from dedupe.partition.snapshotter import Snapshotter
from dedupe.router import Router
from dedupe.storage.log import LogStore
from dedupe.storage.setting_problems import NOTHING_FOUND


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The parts of a worker that the admin port reads, in the ingest's loop."""

    router: Router
    edge: EdgeCollector
    group: GroupLanes | None = None
    worker: str = "worker"
    tail: Tail = field(default_factory=lambda: Tail(SystemClock()))
    history: History = field(default_factory=lambda: History(SystemClock()))
    replay_at: ReplayAt = no_record
    refusals: RefusalCounts = field(default_factory=RefusalCounts)
    setting_watch: SettingWatch = field(default_factory=lambda: SettingWatch(NOTHING_FOUND, None))
    snapshotter: Snapshotter | None = None
    inputs: Inputs | None = None
    native: NativeUse | None = None
    use: SourceUse = field(default_factory=SourceUse)
    observed: Observed | None = None
    samples: DuplicateSamples | None = None
    plan_progress: PlanProgress = field(default_factory=lambda: PlanProgress(SystemClock()))

    def stats(self) -> dict[str, Any]:
        """Return this worker's own statistics."""
        router, group = self.router, self.group
        documents = [
            partition_of(lane)
            | inheritance_of(lane, router.layout if number < len(router.lanes) else None)
            | places_of(group, number, self.worker)
            for number, lane in enumerate(router.all_lanes)
        ]
        return {
            "version": VERSION,
            "worker": self.worker,
            **answers_of(router.answers),
            "refused_requests": refusals_of(self.refusals),
            "in_flight": router.in_flight,
            "outage": router.outage,
            "wrong_settings": self.setting_watch.sentences,
            "group": group_of(group),
            "reshard": reshard_document(self.plan_progress, router.layout),
            **self.edge.document(),
            "inputs": inputs_document(self.inputs),
            "observed": observed_document(self.observed),
            "duplicate_samples": samples_document(self.samples),
            "native": native_document(self.native),
            "partitions": documents[: len(router.lanes)],
            "quarantine": documents[len(router.lanes) :],
        }

    def register(self, registry: CollectorRegistry) -> None:
        """Register the collectors of the ingest."""
        registry.register(LaneCollector(self.router))
        if self.group is not None:
            registry.register(GroupCollector(self.group))
        registry.register(self.edge)
        registry.register(ReshardCollector(self.plan_progress))
        registry.register(SettingCollector(self.setting_watch))
        registry.register(SourceCollector(self.use))
        if self.observed is not None:
            registry.register(ObservedCollector(self.observed))
        if self.samples is not None:
            registry.register(SampleCollector(self.samples))
        if self.snapshotter is not None:
            registry.register(SnapshotCollector(self.snapshotter))
        if self.inputs is not None:
            registry.register(InputCollector(self.inputs))
        if self.native is not None:
            registry.register(NativeCollector(self.native))


def create_admin(
    admin_context: AdminContext,
    *,
    settings: Settings,
    identity: Identity,
    store: LogStore,
    clock: Clock,
    problems: Problems,
    registry: CollectorRegistry,
    ingest_loop: IngestLoop,
) -> ASGIApp:
    """Return the admin application; /metrics reads `registry`."""
    app = _new(problems)
    app.state.tokens = tokens_of(settings)
    add_probes(app, admin_context.router, registry, ingest_loop)
    _add_stats(app, admin_context, settings, store.log_id, ingest_loop)
    add_group(app, admin_context.group, admin_context.stats, ingest_loop)
    add_sessions(app, admin_context.router, identity, ingest_loop)
    add_lookup(app, Lookup(admin_context.router, store, identity, settings.log.topics, clock), ingest_loop)
    add_history(app, admin_context.history, admin_context.group, clock, ingest_loop)
    comparison = Comparison(store, settings.log.topic, frozenset(settings.gateway.fingerprint_ignore))
    compared = partial(differs_in, comparison)
    add_tail(
        app,
        admin_context.tail,
        ingest_loop,
        partial(locate, admin_context.router, identity),
        compared,
        is_ending=lambda: admin_context.router.is_draining,
    )
    add_events(app, HeldEvents(admin_context.tail, ingest_loop, compared, clock))
    add_quarantined(
        app,
        Quarantined(admin_context.router, store, identity, settings.log.topics[1], comparison),
        ingest_loop,
    )
    add_replay(app, admin_context.replay_at, ingest_loop)
    add_console(app)
    add_runbooks(app)
    add_verify(app, admin_context.router, store, clock, ingest_loop)
    add_inputs(app, admin_context.inputs, ingest_loop)
    add_input_controls(app, admin_context.inputs, ingest_loop)
    add_snapshots(app, admin_context.router, admin_context.snapshotter, ingest_loop)
    add_partitions(app, admin_context.group, admin_context.stats, ingest_loop)
    add_write_keys(app, admin_context.edge.key_file, admin_context.group, ingest_loop)
    edge, refusals = admin_context.edge, admin_context.refusals
    sources = Sources(admin_context.router.answers, refusals, edge.ingress, admin_context.use, clock)
    admin_context.history.on_step = admin_context.use.turn_day
    add_sources(app, sources, admin_context.group, ingest_loop)
    add_about(app, settings)
    add_openapi(app)
    check_scopes(app)
    return _with_host_check(app, settings, problems)


def create_probes(
    router: Router,
    *,
    settings: Settings,
    problems: Problems,
    registry: CollectorRegistry,
    ingest_loop: IngestLoop,
) -> ASGIApp:
    """Return the application of the probes' own port, whose paths need no token."""
    app = _new(problems)
    add_probes(app, router, registry, ingest_loop)
    check_scopes(app)
    return _with_host_check(app, settings, problems)


def tokens_of(settings: Settings) -> list[tuple[Scope, bytes]]:
    """Return the tokens of the settings; without any, all requests are allowed."""
    tokens = ((Scope.WRITE, settings.admin.token), (Scope.READ, settings.admin.read_token))
    return [(scope, token.get_secret_value().encode()) for scope, token in tokens if token is not None]


def _new(problems: Problems) -> FastAPI:
    app = bare_application(problems)

    @app.exception_handler(TokenInvalidError)
    async def answer_unauthorized(request: Request, err: TokenInvalidError) -> Response:
        answer = problems.answer(err, request.scope)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    @app.exception_handler(RequestValidationError)
    async def answer_wrong_parameter(request: Request, err: RequestValidationError) -> Response:
        first = err.errors()[0]
        detail = f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"
        return problems.answer(RequestError(detail=detail), request.scope)

    return app


def _with_host_check(app: FastAPI, settings: Settings, problems: Problems) -> ASGIApp:
    admin = settings.admin
    probed = () if admin.probe_listen is None else (admin.probe_listen.host,)
    return check_hosts(app, hosts=[admin.host, *probed, *admin.hosts], problems=problems)


def _add_stats(
    app: FastAPI, admin_context: AdminContext, settings: Settings, log_id: str, ingest_loop: IngestLoop
) -> None:
    began = time.monotonic()

    schema = files("app.admin").joinpath("stats.schema.json").read_bytes()

    @app.get("/admin/v1/stats.schema.json", dependencies=[READ])
    async def get_stats_schema() -> Response:
        """Return the JSON Schema of the statistics."""
        return Response(schema, media_type="application/schema+json")

    @app.get("/admin/v1/stats", dependencies=[READ])
    async def get_stats() -> Response:
        """Return the statistics of this worker and its partitions."""
        return json_answer(
            {
                "schema_version": SCHEMA_VERSION,
                "uptime_seconds": round(time.monotonic() - began, 3),
                "mode": settings.gateway.mode,
                "log": settings.log.kind,
                "log_id": log_id,
                "topic": settings.log.topic,
                "quarantine_topic": settings.log.quarantine_topic,
                "window_seconds": settings.index.window,
                "index_keys_max": settings.index.keys_max,
                **await ingest_loop.read(admin_context.stats),
            }
        )
