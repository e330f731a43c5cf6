"""
The scopes of tokens on the admin port.

A route declares its scope: `dependencies=[READ]` or `[WRITE]`, or `[OPEN]` if it shows no secret and changes
nothing. Contents of events need WRITE: `[READ_VALUE]` is for a route that shows them only if `value` is in
the query; `[FULL_VALUE]` needs the writing token in any case, and is noted only with `value`. `check_scopes`
refuses a route without a scope at the start. A writing token may read, too. Each request of a route that
needs WRITE is logged with its outcome.

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
    """The scope of a token."""

    READ = "read"
    WRITE = "write"


_BEARER = HTTPBearer(
    scheme_name="token", auto_error=False, description="GATEWAY_ADMIN_TOKEN, or GATEWAY_ADMIN_READ_TOKEN"
)
Shown = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


async def _allow() -> None:
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


async def _check_full_value(request: Request, shown: Shown) -> AsyncIterator[None]:
    if "value" in request.query_params:
        async with asynccontextmanager(_check_write)(request, shown):
            yield
    elif _scope_of(request, shown) is Scope.WRITE:
        yield
    else:
        raise TokenScopeError


OPEN, READ, WRITE = Depends(_allow), Depends(_check_read), Depends(_check_write)
READ_VALUE, FULL_VALUE = Depends(_check_read_value), Depends(_check_full_value)
_MARKS = {_allow, _check_read, _check_write, _check_read_value, _check_full_value}


def check_scopes(app: FastAPI) -> None:
    """Assert that every route declares its scope; call it last."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            marks = {depends.dependency for depends in route.dependencies} & _MARKS
            assert len(marks) == 1, f"{route.path} must declare OPEN, READ or WRITE"


def _scope_of(request: Request, shown: HTTPAuthorizationCredentials | None) -> Scope:
    """Return the scope of a request's token, in constant time. Raises TokenInvalidError."""
    tokens: list[tuple[Scope, bytes]] = request.app.state.tokens
    if not tokens:
        return Scope.WRITE
    token = (shown.credentials if shown else "").encode()
    scopes = [scope for scope, known in tokens if hmac.compare_digest(token, known)]
    if not scopes:
        raise TokenInvalidError
    return scopes[0]


def _note(request: Request, outcome: str) -> None:
    """Write the line of the audit log: a warning, which all usual log levels include."""
    route: Any = request.scope.get("route")
    logger.warning(
        "shown through the admin port" if request.method == "GET" else "changed through the admin port",
        action=f"{request.method} {route.path if route else request.url.path}",
        target=request.path_params or None,
        address=request.client.host if request.client else None,
        outcome=outcome,
    )
