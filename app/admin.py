"""
The admin port: health, metrics and statistics for operators. Never public.

Liveness says only that the event loop turns; it must not depend on the log, or an outage of Kafka
would restart every gateway in the middle of it.
"""

import time
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from app.edge import add_error_handlers
from app.edge_metrics import EdgeCollector
from app.lane_metrics import LaneCollector
from app.problems import Problems
from app.readiness import readiness_of
from app.settings import Settings
from app.stats import partition_of, progress_of, totals_of
from app.version import VERSION
from dedupe.router import Router


def create_admin(
    router: Router,
    edge: EdgeCollector,
    *,
    settings: Settings,
    problems: Problems,
    registry: CollectorRegistry,
) -> FastAPI:
    """Return the admin application; the registry gets the collectors of this process."""
    registry.register(LaneCollector(router))
    registry.register(edge)
    ProcessCollector(registry=registry)
    began = time.monotonic()
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    add_error_handlers(app, problems)

    @app.get("/livez")
    async def get_livez() -> Response:
        return _json({"alive": True})

    @app.get("/readyz")
    async def get_readyz(request: Request) -> Response:
        ready = readiness_of(router)
        if "verbose" in request.query_params:
            ready["progress"] = [progress_of(lane) for lane in router.all_lanes]
        return _json(ready, status=200 if ready["ready"] else 503)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/admin/v1/stats")
    async def get_stats() -> Response:
        return _json(
            {
                "version": VERSION,
                "uptime_seconds": round(time.monotonic() - began, 3),
                "mode": settings.mode,
                "log": settings.log,
                "topic": settings.topic,
                "totals": totals_of(router.totals),
                "in_flight": router.in_flight,
                **edge.document(),
                "partitions": [partition_of(lane) for lane in router.lanes],
                "quarantine": [partition_of(lane) for lane in router.quarantine_lanes],
            }
        )

    return app


def _json(document: dict[str, Any], *, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
