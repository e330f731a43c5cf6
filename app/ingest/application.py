"""
The application of the ingest port: plain ASGI, with Starlette's requests and responses.

    EdgeProtocol (a connection) -> **RequestMiddleware -> PathTable -> a handler**

Paths are looked up in a table, and handlers read bytes, which costs less than a framework's router.
"""

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.body_memory import BodyMemory
from app.http.errors import TooManyConnectionsError
from app.http.problems import Problems
from app.http.request_context import CONTEXT, RequestContext
from app.http.request_metrics import RequestMetrics
from app.http.request_middleware import RequestMiddleware
from app.ingest.openapi import openapi_document
from app.ingest.receipts import SUCCESS
from app.ingest.routes.cloudevents import cloudevents_handler
from app.ingest.routes.events import Ingest, ingest_handlers
from app.ingest.routes.path_table import Handler, PathTable
from app.ingest.routes.paths import PATHS, Kind, Path
from app.ingest.routes.pixel import get_pixel
from app.ingest.routes.sdk_settings import settings_handlers
from app.ingest.routes.sessions import session_handlers
from app.process.readiness import health_endpoint


def create_edge(
    ingest: Ingest,
    *,
    memory: BodyMemory,
    problems: Problems,
    metrics: RequestMetrics,
    public_host: str | None = None,
) -> ASGIApp:
    """
    Return the ingest application.

    Args:
        ingest: the collaborators of the paths of events.
        memory: the budget for bodies.
        problems: the answers of errors.
        metrics: count requests.
        public_host: the host in settings documents, if any.
    """
    return RequestMiddleware(
        PathTable(PATHS, _handlers(ingest, metrics, problems, public_host)),
        memory=memory,
        problems=problems,
        metrics=metrics,
        router=ingest.router,
        health=health_endpoint(ingest.router),
        penalties=ingest.penalties,
    )


def create_refusal(*, memory: BodyMemory, problems: Problems, metrics: RequestMetrics) -> ASGIApp:
    """Return the application of connections beyond the limit, which refuses each request."""

    async def refuse(scope: Scope, _receive: Receive, _send: Send) -> None:
        context: RequestContext = scope[CONTEXT]
        context.route = "too_many_connections"
        raise TooManyConnectionsError

    return RequestMiddleware(refuse, memory=memory, problems=problems, metrics=metrics)


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
        Kind.CLOUDEVENTS: cloudevents_handler(ingest),
        **session_handlers(ingest),
        **settings_handlers(ingest.write_keys, public_host),
        Kind.PIXEL: pixel,
        Kind.TELEMETRY: post_telemetry,
        Kind.OPENAPI: get_openapi,
    }
