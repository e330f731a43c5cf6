"""The FastAPI application of the admin port and of probes, without routes: errors become problems."""

from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.http.problems import Problems
from app.http.request_middleware import CLIENT_LEFT
from dedupe.model.errors import GatewayError

NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own spans have the query of requests: write keys, and events. See app/telemetry/traces.py."""


def bare_application(problems: Problems) -> FastAPI:
    """Return an application that answers every error, the framework's included, with a problem."""
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=NO_TELEMETRY
    )

    @app.exception_handler(GatewayError)
    async def answer_error(request: Request, err: GatewayError) -> Response:
        return problems.answer(err, request.scope)

    @app.exception_handler(HTTPException)
    async def answer_http_error(request: Request, err: HTTPException) -> Response:
        return problems.http(err, request.scope)

    @app.exception_handler(ClientDisconnect)
    async def answer_disconnect(_request: Request, _err: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(Exception)
    async def answer_unforeseen(request: Request, err: Exception) -> Response:
        return problems.unforeseen(err, request.scope)

    return app
