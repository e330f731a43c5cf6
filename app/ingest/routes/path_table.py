"""
Finds a request's path in the table, mostly by one look-up.

Common mistakes in the host of an SDK are accepted: additional slashes, a missing /v1, or a second one. No
answer redirects, since SDKs treat every status below 400 as success.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.http.request_context import CONTEXT, RequestContext
from app.ingest.routes.paths import Kind, Path

Handler: TypeAlias = Callable[[Request, Path], Awaitable[Response]]

VERSION_PREFIX = "/v1"

_PARAMETER = re.compile(r"\{(\w+)\}")
_SLASHES = re.compile(r"/+")


class _Route(NamedTuple):
    path: Path
    methods: tuple[str, ...]
    handler: Handler


class PathTable:
    """The routes of the ingest port, as an ASGI application."""

    def __init__(self, paths: Sequence[Path], handlers: Mapping[Kind, Handler]) -> None:
        """`handlers`: the handler of each kind of path."""
        self._exact: dict[str, _Route] = {}
        self._patterns: list[tuple[re.Pattern[str], _Route]] = []
        for path in paths:
            route = _Route(path, path.methods, handlers[path.kind])
            if "{" in path.template:
                self._patterns.append((_pattern(path), route))
            else:
                self._exact[path.template] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises HTTPException (404, 405), and the handler's errors."""
        route, parameters = self._exact.get(scope["path"]), dict[str, str]()
        if route is None:
            route, parameters = self._find(scope["raw_path"].decode("ascii", "replace"))
        path, methods, handler = route
        context: RequestContext = scope[CONTEXT]
        context.route = path.template
        if scope["method"] not in methods:
            raise HTTPException(405, headers={"Allow": ", ".join(dict.fromkeys((*methods, "OPTIONS")))})
        scope["path_params"] = parameters
        response = await handler(Request(scope, receive, send), path)
        await response(scope, receive, send)

    def _find(self, raw_path: str) -> tuple[_Route, dict[str, str]]:
        """Return the route of a path that differs from the table. Raises HTTPException (404)."""
        requested = _SLASHES.sub("/", raw_path).rstrip("/")
        route = self._search(requested) or self._search(VERSION_PREFIX + requested)
        if route is None and requested.startswith(VERSION_PREFIX + "/"):
            route = self._search(requested.removeprefix(VERSION_PREFIX))
        if route is None:
            raise HTTPException(404)
        return route

    def _search(self, requested: str) -> tuple[_Route, dict[str, str]] | None:
        """Return the route of a path and its parameters; an encoded slash belongs to a parameter."""
        if route := self._exact.get(unquote(requested)):
            return route, {}
        for pattern, route in self._patterns:
            if match := pattern.fullmatch(requested):
                return route, {name: unquote(value) for name, value in match.groupdict().items()}
        return None


def _pattern(path: Path) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path.template))
