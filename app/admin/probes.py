"""
The paths without a token, for orchestrators and collectors: /livez, /readyz and /metrics.

Liveness does not depend on the log: an outage of Kafka must not restart the gateways.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from app.admin.answers import json_answer
from app.admin.ingest_loop import ALIVE_S, IngestLoop
from app.admin.scopes import OPEN
from app.admin.stats import progress_of
from app.process.readiness import readiness_of
from dedupe.router import Router


def add_probes(app: FastAPI, router: Router, registry: CollectorRegistry, ingest_loop: IngestLoop) -> None:
    """Add the paths; the registry is read in the ingest's loop."""
    process = ProcessCollector(registry=None)

    @app.get("/livez", dependencies=[OPEN])
    async def get_livez() -> Response:
        """Return whether the ingest's event loop is alive."""
        silence_s = ingest_loop.silence_s
        is_alive = silence_s < ALIVE_S
        return json_answer(
            {"alive": is_alive, "silence_seconds": round(silence_s, 3)}, status=200 if is_alive else 503
        )

    @app.get("/readyz", dependencies=[OPEN])
    async def get_readyz(request: Request) -> Response:
        """Return whether requests are accepted; `?verbose` adds the progress of each lane."""

        def read() -> dict[str, Any]:
            ready = readiness_of(router)
            if "verbose" in request.query_params:
                ready["progress"] = [progress_of(lane) for lane in router.all_lanes]
            return ready

        ready = await ingest_loop.read(read)
        return json_answer(ready, status=200 if ready["ready"] else 503)

    @app.get("/metrics", dependencies=[OPEN])
    async def get_metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        families = await ingest_loop.read(lambda: list(registry.collect()))
        text = generate_latest(_Collected([*families, *process.collect()]))
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Collected(Collector):
    """Collected families, for generate_latest."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
