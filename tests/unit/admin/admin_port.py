"""An admin application on a simulated log, asked without a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from app.admin.application import AdminContext, create_admin, create_probes
from app.admin.edge_metrics import EdgeCollector
from app.admin.ingest_loop import IngestLoop
from app.build import build_admin_problems, build_ingress_limits
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.router import Router
from dedupe.storage.log import LogStore
from tests.sim.world import World
from tests.support.settings import make_settings
from tests.support.sim.sim_log import SimStore

READ_TOKEN, WRITE_TOKEN = "a token that may read", "a token that may write"


def admin_of(
    router: Router | None = None, store: LogStore | None = None, *, probes: bool = False, **settings: Any
) -> ASGIApp:
    """Return an admin application, or the one of the probes' own port; needs the running loop."""
    told = make_settings(mode="development", log="sqlite", **settings)
    problems, registry, ingest_loop = build_admin_problems(), CollectorRegistry(), IngestLoop()
    admin_context = AdminContext(
        router or World().build(), EdgeCollector(build_ingress_limits(told, SystemClock(), index_files=0))
    )
    admin_context.register(registry)
    if probes:
        return create_probes(
            admin_context.router, settings=told, problems=problems, registry=registry, ingest_loop=ingest_loop
        )
    return create_admin(
        admin_context,
        settings=told,
        identity=Identity(told.gateway.identity_key),
        store=store or SimStore(log_id="log"),
        clock=SystemClock(),
        problems=problems,
        registry=registry,
        ingest_loop=ingest_loop,
    )


@asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of it."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
