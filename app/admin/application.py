"""
The admin port: health, metrics and statistics for operators. Never public.

It runs in a thread with an event loop of its own (ADR 0010), so that liveness is answered whatever
the ingest's does. Everything that belongs to the ingest is read there, in one short turn; documents
are rendered here. Liveness must not depend on the log, or an outage of Kafka would restart every
gateway in the middle of it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from app.admin.edge_metrics import EdgeCollector
from app.admin.group import GroupCollector, add_group, group_of, places_of
from app.admin.guard import AdminGuard
from app.admin.ingest_loop import ALIVE_S, IngestLoop
from app.admin.lane_metrics import LaneCollector
from app.admin.lookup import Lookup, add_lookup
from app.admin.sessions import add_sessions
from app.admin.stats import partition_of, progress_of, totals_of
from app.config import VERSION, Settings
from app.group import GroupLanes
from app.http import Problems, add_error_handlers
from app.process import readiness_of
from dedupe.clock import Clock
from dedupe.identity import Identity
from dedupe.log import LogStore
from dedupe.router import Router


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts of a worker that its operators look at; all of them belong to the ingest's loop."""

    router: Router
    edge: EdgeCollector
    group: GroupLanes | None = None

    def stats(self) -> dict[str, Any]:
        """Return what this worker knows of itself."""
        router, group = self.router, self.group
        documents = [
            partition_of(lane) | places_of(group, number) for number, lane in enumerate(router.all_lanes)
        ]
        return {
            "totals": totals_of(router.totals),
            "in_flight": router.in_flight,
            "outage": router.outage,
            "group": group_of(group),
            **self.edge.document(),
            "partitions": documents[: len(router.lanes)],
            "quarantine": documents[len(router.lanes) :],
        }


def create_admin(
    watched: Watched,
    *,
    settings: Settings,
    identity: Identity,
    store: LogStore,
    clock: Clock,
    problems: Problems,
    registry: CollectorRegistry,
    ingest_loop: IngestLoop,
) -> ASGIApp:
    """Return the admin application; the registry gets the collectors that belong to the ingest."""
    router, group = watched.router, watched.group
    registry.register(LaneCollector(router))
    if group is not None:
        registry.register(GroupCollector(group))
    registry.register(watched.edge)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    add_error_handlers(app, problems)
    _add_probes(app, router, ingest_loop)
    _add_metrics(app, registry, ingest_loop)
    _add_stats(app, watched, settings, store.log_id, ingest_loop)
    add_group(app, group, watched.stats, ingest_loop)
    add_sessions(app, router, identity, ingest_loop)
    add_lookup(app, Lookup(router, store, identity, settings.topic, clock), ingest_loop)
    token = settings.admin_token
    return AdminGuard(
        app,
        hosts=[settings.admin_host, *settings.admin_hosts],
        token=None if token is None else token.get_secret_value(),
    )


def _add_probes(app: FastAPI, router: Router, ingest_loop: IngestLoop) -> None:
    @app.get("/livez")
    async def get_livez() -> Response:
        silence_s = ingest_loop.silence_s
        is_alive = silence_s < ALIVE_S
        return _json(
            {"alive": is_alive, "silence_seconds": round(silence_s, 3)}, status=200 if is_alive else 503
        )

    @app.get("/readyz")
    async def get_readyz(request: Request) -> Response:
        def read() -> dict[str, Any]:
            ready = readiness_of(router)
            if "verbose" in request.query_params:
                ready["progress"] = [progress_of(lane) for lane in router.all_lanes]
            return ready

        ready = await ingest_loop.read(read)
        return _json(ready, status=200 if ready["ready"] else 503)


def _add_metrics(app: FastAPI, registry: CollectorRegistry, ingest_loop: IngestLoop) -> None:
    process = ProcessCollector(registry=None)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        families = await ingest_loop.read(lambda: list(registry.collect()))
        text = generate_latest(_Collected([*families, *process.collect()]))
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _add_stats(
    app: FastAPI, watched: Watched, settings: Settings, log_id: str, ingest_loop: IngestLoop
) -> None:
    began = time.monotonic()

    @app.get("/admin/v1/stats")
    async def get_stats() -> Response:
        return _json(
            {
                "version": VERSION,
                "uptime_seconds": round(time.monotonic() - began, 3),
                "mode": settings.mode,
                "log": settings.log,
                "log_id": log_id,
                "topic": settings.topic,
                "quarantine_topic": settings.quarantine_topic,
                "window_seconds": settings.window,
                "index_keys_max": settings.index_keys_max,
                **await ingest_loop.read(watched.stats),
            }
        )


class _Collected(Collector):
    """Families that were collected before, for the renderer."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _json(document: dict[str, Any], *, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
