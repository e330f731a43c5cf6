"""The application of the ingest port: routes inside, then the request hook, CORS and the memory's lease."""

import asyncio

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from app.body_memory import LEASE, BodyMemory, Leased
from app.cors import CORS
from app.errors import QuotaExceededError, TooManyConnectionsError
from app.metrics import RequestMetrics
from app.problems import Problems
from app.request_hook import CLIENT_LEFT, RequestHook
from app.routes.events import Ingest, add_event_routes
from dedupe.errors import GatewayError


def create_edge(
    ingest: Ingest,
    *,
    memory: BodyMemory,
    problems: Problems,
    metrics: RequestMetrics,
    quota_penalty_s: float = 0.0,
) -> ASGIApp:
    """Return the ingest application. No path redirects: SDKs take any status below 400 for success."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    add_event_routes(app, ingest)
    add_error_handlers(app, problems)

    @app.exception_handler(QuotaExceededError)
    async def answer_late(request: Request, err: QuotaExceededError) -> Response:
        request.scope[LEASE].fail(err)
        await asyncio.sleep(quota_penalty_s)
        return problems.answer(err)

    hooked = RequestHook(
        app, problems=problems, metrics=metrics, is_draining=lambda: ingest.router.is_draining
    )
    return Leased(CORS(hooked), memory)


def create_refusal(*, memory: BodyMemory, problems: Problems, metrics: RequestMetrics) -> ASGIApp:
    """Return the application of connections that are too many: each request of theirs is refused."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        scope["gateway.route"] = "too_many_connections"
        await problems.answer(TooManyConnectionsError())(scope, receive, send)

    return Leased(CORS(RequestHook(refuse, problems=problems, metrics=metrics, is_draining=bool)), memory)


def add_error_handlers(app: FastAPI, problems: Problems) -> None:
    """Answer every error with a problem, the framework's own included."""

    @app.exception_handler(GatewayError)
    async def answer_error(_request: Request, err: GatewayError) -> Response:
        return problems.answer(err)

    @app.exception_handler(HTTPException)
    async def answer_http_error(_request: Request, err: HTTPException) -> Response:
        return problems.http(err)

    @app.exception_handler(ClientDisconnect)
    async def answer_nobody(_request: Request, _err: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(Exception)
    async def answer_unforeseen(request: Request, err: Exception) -> Response:
        return problems.unforeseen(err, request.scope.get("gateway.request_id"))
