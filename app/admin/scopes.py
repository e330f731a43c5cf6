"""
What a request on the admin port may do, by its token.

A route declares what it needs: `dependencies=[READ]` or `[WRITE]`, or `[OPEN]` if it shows no secret and
changes nothing. Contents of events need WRITE: `[READ_VALUE]` is for a route that shows them only if `value`
is in the query. A route without a declaration is refused at start (`check_scopes`). A token that may write
may read. Each request of a route that needs WRITE is logged with its outcome.

The tokens, pairs of scope and bytes, are the application's `state.tokens`.
"""

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Annotated, Any

import structlog
from fastapi import Depends, FastAPI, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.admin.answers import TokenInvalidError, TokenScopeError
from dedupe.model.errors import GatewayError

logger = structlog.get_logger(__name__)


class Scope(Enum):
    """What a token allows."""

    READ = "read"
    WRITE = "write"


_BEARER = HTTPBearer(
    scheme_name="token", auto_error=False, description="GATEWAY_ADMIN_TOKEN, or GATEWAY_ADMIN_READ_TOKEN"
)
Shown = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


async def _ask_nothing() -> None:
    """Allow every request."""


async def _check_read(request: Request, shown: Shown) -> None:
    _scope_of(request, shown)


async def _check_write(request: Request, shown: Shown) -> AsyncIterator[None]:
    if _scope_of(request, shown) is not Scope.WRITE:
        raise TokenScopeError
    try:
        yield
    except GatewayError as err:
        _note(request, f"{err.code}: {err}" if str(err) else err.code)
        raise
    except BaseException as err:
        _note(request, type(err).__name__)
        raise
    _note(request, "done")


async def _check_read_value(request: Request, shown: Shown) -> AsyncIterator[None]:
    if "value" in request.query_params:
        async with asynccontextmanager(_check_write)(request, shown):
            yield
    else:
        await _check_read(request, shown)
        yield


OPEN, READ, WRITE = Depends(_ask_nothing), Depends(_check_read), Depends(_check_write)
READ_VALUE = Depends(_check_read_value)
_MARKS = {_ask_nothing, _check_read, _check_write, _check_read_value}


def check_scopes(app: FastAPI) -> None:
    """Refuse an application with a route that does not declare its scope: a bug. Call it last."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            marks = {depends.dependency for depends in route.dependencies} & _MARKS
            assert len(marks) == 1, f"{route.path} must say OPEN, READ or WRITE"


def _scope_of(request: Request, shown: HTTPAuthorizationCredentials | None) -> Scope:
    """Return the scope of the token of a request, in the same time for each. Raises TokenInvalidError."""
    tokens: list[tuple[Scope, bytes]] = request.app.state.tokens
    if not tokens:
        return Scope.WRITE
    token = (shown.credentials if shown else "").encode()
    scopes = [scope for scope, known in tokens if hmac.compare_digest(token, known)]
    if not scopes:
        raise TokenInvalidError
    return scopes[0]


def _note(request: Request, outcome: str) -> None:
    """Write the line of the audit log: a warning, so that it is there at every usual level."""
    route: Any = request.scope.get("route")
    logger.warning(
        "shown through the admin port" if request.method == "GET" else "changed through the admin port",
        action=f"{request.method} {route.path if route else request.url.path}",
        target=request.path_params or None,
        address=request.client.host if request.client else None,
        outcome=outcome,
    )
