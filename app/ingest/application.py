"""The application of the ingest port: routes inside, then the request hook, CORS and the memory's lease."""

import asyncio

import orjson
from fastapi import FastAPI, Request, Response
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http import (
    CORS,
    LEASE,
    BodyMemory,
    BodyMemoryFullError,
    Leased,
    Problems,
    QuotaExceededError,
    RequestHook,
    RequestMetrics,
    TooManyConnectionsError,
    bare_application,
)
from app.ingest.openapi import openapi_document
from app.ingest.receipts import SUCCESS
from app.ingest.routes.events import Ingest, ingest_handlers
from app.ingest.routes.path_table import Handler, PathTable
from app.ingest.routes.paths import PATHS, Kind, Path
from app.ingest.routes.pixel import get_pixel
from app.ingest.routes.sdk_settings import settings_handlers
from app.ingest.routes.sessions import session_handlers
from app.process import Health
from dedupe.errors import GatewayError


class _Edge(FastAPI):
    """FastAPI without the layers that nothing here uses, and each request would pass twice."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the routes, and what answers all of their errors."""
        return ExceptionMiddleware(self.router, self.exception_handlers)


QUOTA_PENALTY_S = 0.5
"""
How long the answer to a used-up quota, or to a body for which there is no memory, is held back, so that
a client that ignores Retry-After cannot crowd the others out.
"""


def create_edge(
    ingest: Ingest,
    *,
    memory: BodyMemory,
    problems: Problems,
    metrics: RequestMetrics,
    quota_penalty_s: float = 0.0,
    public_host: str | None = None,
) -> ASGIApp:
    """Return the ingest application; `public_host` is what settings documents name, if anything."""
    app = bare_application(problems, _Edge)
    app.router.routes.append(PathTable(PATHS, _handlers(ingest, metrics, problems, public_host)))

    @app.exception_handler(QuotaExceededError)
    @app.exception_handler(
        BodyMemoryFullError
    )  # refused at once, a few clients could ask 10,000 times a second
    async def answer_late(request: Request, err: GatewayError) -> Response:
        request.scope[LEASE].fail(err)
        err.__traceback__ = None  # whose frames hold the body, that nobody counts any more
        await asyncio.sleep(quota_penalty_s)
        return problems.answer(err, request.scope)

    hooked = RequestHook(
        app, problems=problems, metrics=metrics, is_draining=lambda: ingest.router.is_draining
    )
    return Leased(Health(CORS(hooked), ingest.router), memory)


def create_refusal(*, memory: BodyMemory, problems: Problems, metrics: RequestMetrics) -> ASGIApp:
    """Return the application of connections that are too many: each request of theirs is refused."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        scope["gateway.route"] = "too_many_connections"
        await problems.answer(TooManyConnectionsError(), scope)(scope, receive, send)

    return Leased(CORS(RequestHook(refuse, problems=problems, metrics=metrics, is_draining=bool)), memory)


def _handlers(
    ingest: Ingest, metrics: RequestMetrics, problems: Problems, public_host: str | None
) -> dict[Kind, Handler]:
    document = orjson.dumps(openapi_document(PATHS, request_events_max=ingest.request_events_max))

    async def pixel(request: Request, path: Path) -> Response:
        return await get_pixel(ingest, metrics, problems, request, path)

    async def post_telemetry(_request: Request, _path: Path) -> Response:
        return Response(SUCCESS, media_type="application/json")

    async def get_openapi(_request: Request, _path: Path) -> Response:
        return Response(document, media_type="application/json")

    return {
        **ingest_handlers(ingest),
        **session_handlers(ingest),
        **settings_handlers(ingest.write_keys, public_host),
        Kind.PIXEL: pixel,
        Kind.TELEMETRY: post_telemetry,
        Kind.OPENAPI: get_openapi,
    }
