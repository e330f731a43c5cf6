"""
Who may ask the admin port: by the name it is asked under, and by a token.

A page in an operator's browser can send requests to any address that its own name resolves to (DNS
rebinding), so only names that no page can have are answered: addresses, loopback names, and those
that the operator set.
"""

import hmac
from collections.abc import Collection
from http import HTTPStatus

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.config import is_address, is_loopback_name

OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics"})
"""For orchestrators and collectors: they have no token, and learn nothing but numbers."""


class AdminGuard:
    """Wraps the admin application."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str | None) -> None:
        """Take the names that are answered besides addresses and loopback, and the token if there is one."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if not self._is_known(headers.get(b"host", b"").decode("latin-1")):
                answer = _refusal(
                    HTTPStatus.FORBIDDEN,
                    "host_not_allowed",
                    "the admin port is not known by this name; GATEWAY_ADMIN_HOSTS sets more",
                )
                return await answer(scope, receive, send)
            if scope["path"] not in OPEN_PATHS and not self._is_token(headers.get(b"authorization", b"")):
                answer = _refusal(
                    HTTPStatus.UNAUTHORIZED,
                    "admin_token_invalid",
                    "Authorization must be Bearer and the token",
                )
                answer.headers["WWW-Authenticate"] = "Bearer"
                return await answer(scope, receive, send)
        await self._app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        """Whether a Host, with or without port, is one of ours; a client without one is no browser."""
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        return not host or is_loopback_name(name) or is_address(name) or name in self._hosts

    def _is_token(self, authorization: bytes) -> bool:
        scheme, _, told = authorization.partition(b" ")
        return self._token is None or (
            scheme.lower() == b"bearer" and hmac.compare_digest(told.strip(), self._token)
        )


def _refusal(status: HTTPStatus, code: str, message: str) -> Response:
    return Response(orjson.dumps({"code": code, "message": message}), status, media_type="application/json")
