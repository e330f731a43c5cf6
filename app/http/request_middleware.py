"""
Wraps every request of the ingest port: memory, id, CORS headers, metrics, and answers to errors.

It is pure ASGI: a wrapper with tasks of its own would cancel handlers when clients disconnect.
"""

import asyncio
import itertools
import re
import secrets
import time

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.body_memory import BodyMemory
from app.http.cors import HEADERS_WITHOUT_ORIGIN, origin_headers, preflight_headers
from app.http.errors import BodyTruncatedError
from app.http.penalties import Penalties
from app.http.problems import Problems
from app.http.request_context import CONTEXT, RequestContext, begin_context
from app.http.request_metrics import RequestMetrics
from dedupe.model.errors import GatewayError, OutcomeUnknownError
from dedupe.router import Router

CLIENT_LEFT = 499
"""Counted, not sent, when a client disconnects before its answer; nginx uses the same number."""

HEALTH_PATH = "/health"

PROXIES_REPORTED_MAX = 16
"""The limit of log lines on proxies whose clients are unknown."""

WEBHOOK_ORIGIN = b"webhook-request-origin"
"""The header of a webhook's handshake, also by OPTIONS: a path answers it. A preflight only asks for it."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
"""The accepted values of X-Request-Id, which become part of a header and of log lines."""


logger = structlog.get_logger(__name__)


class RequestMiddleware:
    """Wraps the ingest application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        memory: BodyMemory,
        problems: Problems,
        metrics: RequestMetrics,
        router: Router | None = None,
        health: ASGIApp | None = None,
        penalties: Penalties | None = None,
    ) -> None:
        """
        Wrap an application.

        Args:
            app: handles requests; its errors are answered here.
            memory: the budget for bodies.
            problems: the answers of errors.
            metrics: count requests.
            router: while it drains, answers close their connections.
            health: answers load balancers, whose requests are neither counted nor delayed.
            penalties: delay the answers of errors, against fast retries.
        """
        self._app = app
        self._memory = memory
        self._problems = problems
        self._metrics = metrics
        self._router = router
        self._health = health
        self._penalties = penalties or Penalties()
        self._process_id = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._reported_proxies: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        context: RequestContext = scope.get(CONTEXT) or begin_context(scope, self._memory)
        context.headers = headers = dict(scope["headers"])
        method = scope["method"]
        try:
            if method == "OPTIONS" and WEBHOOK_ORIGIN not in headers:
                await _respond(200, preflight_headers(headers), b"", send)
            elif self._health is not None and scope["path"] == HEALTH_PATH and method in ("GET", "HEAD"):
                await self._health(scope, receive, send)
            else:
                if context.unknown_behind is not None:
                    self._note_unknown_client(context.unknown_behind)
                await self._count(context, scope, receive, send)
        finally:
            context.lease.release()

    async def _count(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, count it, and answer its errors."""
        began = time.perf_counter()
        if b"x-request-id" in context.headers:
            context.request_id = _own_id(scope)
        context.request_id = context.request_id or f"{self._process_id}-{next(self._numbers):x}"
        answer = _Answer(send, context, self._router)
        try:
            try:
                await self._app(scope, receive, answer)
            except (GatewayError, HTTPException) as err:
                if not answer.has_begun:  # else it is cut off
                    await self._answer(err, scope, receive, answer)
        except ClientDisconnect:  # within the body: nobody can be answered, but somebody must know
            self._problems.note_damage(BodyTruncatedError(), CLIENT_LEFT, scope)
        except asyncio.CancelledError:  # the server stops without waiting longer
            if not answer.has_begun:
                await self._problems.answer(OutcomeUnknownError())(scope, receive, answer)
            raise
        except Exception as err:
            if not answer.has_begun:
                await self._problems.unforeseen(err, scope)(scope, receive, answer)
        finally:
            self._note_damage(context, answer.status, scope)
            context.watched = ()  # the connection keeps the scope until its next request
            seconds = time.perf_counter() - began - context.lease.waited_s
            self._metrics.observe(context.route, answer.status, seconds)

    def _note_unknown_client(self, proxy: str) -> None:
        """Count a request of an unknown client, and say once of each proxy that its clients are unknown."""
        self._metrics.unknown_clients += 1
        if proxy not in self._reported_proxies and len(self._reported_proxies) < PROXIES_REPORTED_MAX:
            self._reported_proxies.add(proxy)
            logger.warning(
                "clients behind a trusted proxy are unknown: X-Forwarded-For is absent or has no address",
                proxy=proxy,
            )

    def _note_damage(self, context: RequestContext, status: int, scope: Scope) -> None:
        """Count what was wrong with a body of which the rest was read."""
        if context.damage is not None:
            self._problems.note_damage(context.damage, status, scope)

    async def _answer(
        self, err: GatewayError | HTTPException, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer an expected error."""
        await self._penalties.hold_back(err, scope)
        if isinstance(err, HTTPException):
            response = self._problems.http(err, scope)
        else:
            self._metrics.fail(err.code)
            response = self._problems.answer(err, scope)
        await response(scope, receive, send)


class _Answer:
    """Sends an answer with the headers of all answers."""

    __slots__ = ("_context", "_router", "_send", "status")

    def __init__(self, send: Send, context: RequestContext, router: Router | None) -> None:
        self._send = send
        self._context = context
        self._router = router
        self.status = CLIENT_LEFT

    @property
    def has_begun(self) -> bool:
        return self.status != CLIENT_LEFT

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"], (b"gateway-request-id", self._context.request_id.encode())]
            if self._router is not None and self._router.is_draining:
                headers.append((b"connection", b"close"))
            context = self._context
            if context.source_hash is not None and context.source is not None:
                headers.append((b"gateway-source", context.source_hash(context.source).hex().encode()))
            origin = context.headers.get(b"origin")
            headers += HEADERS_WITHOUT_ORIGIN if origin is None else origin_headers(origin)
            message = {**message, "headers": headers}
        await self._send(message)


async def _respond(status: int, headers: list[tuple[bytes, bytes]], body: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _own_id(scope: Scope) -> str:
    """Return the request's X-Request-Id; "" without a valid one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return ""
