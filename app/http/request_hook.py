"""
What happens around every request of the ingest port: its id, its metrics, and a last net.

Pure ASGI, since a wrapper that starts tasks of its own would cancel handlers when clients leave.
"""

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.problems import Problems
from app.http.request_metrics import RequestMetrics
from dedupe.errors import OutcomeUnknownError

CLIENT_LEFT = 499
"""Counted when a client left before its answer; never sent. The number is nginx's."""


_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
"""What of a client's or a load balancer's X-Request-Id is taken: it goes into a header and the log."""


class RequestHook:
    """Wraps the ingest application."""

    def __init__(
        self, app: ASGIApp, *, problems: Problems, metrics: RequestMetrics, is_draining: Callable[[], bool]
    ) -> None:
        """Wrap an application; `is_draining` says whether clients should look for another connection."""
        self._app = app
        self._problems = problems
        self._metrics = metrics
        self._is_draining = is_draining
        self._process_id = secrets.token_hex(4)
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _told_id(scope["headers"]) or f"{self._process_id}-{next(self._numbers):x}"
        scope["gateway.request_id"] = request_id
        status = CLIENT_LEFT

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"gateway-request-id", request_id.encode())]
                if self._is_draining():
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops and does not wait for us any longer
            if status == CLIENT_LEFT:
                await self._problems.answer(OutcomeUnknownError())(scope, receive, send_with_id)
            raise
        except Exception as err:
            if status == CLIENT_LEFT:  # else an answer has begun, and breaks off
                await self._problems.unforeseen(err, scope)(scope, receive, send_with_id)
        finally:
            scope.pop("gateway.watched", None)  # its connection keeps the scope until the next request
            route = scope.get("gateway.route", "unknown")
            self._metrics.observe(route, status, time.perf_counter() - began)


def _told_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the request's own X-Request-Id, "" if it has no well-formed one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return ""
