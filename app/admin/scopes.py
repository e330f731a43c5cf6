"""
What a request on the admin port may do: by the token it shows.

A route says what it needs: `dependencies=[READ]` or `[WRITE]`, or `[OPEN]` if it tells nobody's secret and
changes nothing. What events say of people needs WRITE as well: `[READ_VALUE]` is for a route that tells it
only if `value` is in the query. One that says nothing is not served at all (`check_scopes`). Whoever may
write may read. Each request of a route that needs WRITE leaves a line in the log, whatever came of it.
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
from dedupe.errors import GatewayError

log = structlog.get_logger(__name__)


class Scope(Enum):
    """What a token is good for."""

    READ = "read"
    WRITE = "write"


class Tokens:
    """The tokens of the admin port; without any, whoever reaches it may do everything."""

    def __init__(self, *, write: str | None, read: str | None) -> None:
        """Take the token that may do everything and the one that may only look, if they are set."""
        told = ((Scope.WRITE, write), (Scope.READ, read))
        self._tokens = [(scope, token.encode()) for scope, token in told if token is not None]

    def scope_of(self, token: str | None) -> Scope:
        """Return what a token is good for, in the same time whichever it is. Raises TokenInvalidError."""
        if not self._tokens:
            return Scope.WRITE
        shown = (token or "").encode()
        found = [scope for scope, known in self._tokens if hmac.compare_digest(shown, known)]
        if not found:
            raise TokenInvalidError
        return found[0]


_BEARER = HTTPBearer(
    scheme_name="token", auto_error=False, description="GATEWAY_ADMIN_TOKEN, or GATEWAY_ADMIN_READ_TOKEN"
)
Shown = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


async def _ask_nothing() -> None:
    """Let everybody pass."""


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


def use_tokens(app: FastAPI, tokens: Tokens) -> None:
    """Have an application's routes ask for these."""
    app.state.tokens = tokens


def check_scopes(app: FastAPI) -> None:
    """Refuse an application with a route of which nobody said who may use it: a bug. Call it last."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            marks = {depends.dependency for depends in route.dependencies} & _MARKS
            assert len(marks) == 1, f"{route.path} must say OPEN, READ or WRITE"


def _scope_of(request: Request, shown: HTTPAuthorizationCredentials | None) -> Scope:
    tokens = request.app.state.tokens
    assert isinstance(tokens, Tokens)
    return tokens.scope_of(shown.credentials if shown else None)


def _note(request: Request, outcome: str) -> None:
    """Leave the line of the audit log: a warning, so that it is there at every usual level."""
    route: Any = request.scope.get("route")
    log.warning(
        "shown through the admin port" if request.method == "GET" else "changed through the admin port",
        action=f"{request.method} {route.path if route else request.url.path}",
        target=request.path_params or None,
        address=request.client.host if request.client else None,
        outcome=outcome,
    )
