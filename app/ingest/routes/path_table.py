"""
Finds a request's path in the table: one look-up for most paths, however many there are.

Slips of those who configure a host are forgiven: a slash too many, a missing /v1 and one too many.
No answer redirects: SDKs take any status below 400 for success and forget the events.
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
        """`handlers`: of each kind of path."""
        self._exact: dict[str, _Route] = {}
        self._patterns: list[tuple[re.Pattern[str], _Route]] = []
        for path in paths:
            route = _Route(path, path.methods, handlers[path.kind])
            if "{" in path.template:
                self._patterns.append((_pattern(path), route))
            else:
                self._exact[path.template] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises HTTPException (404, 405), and what its handler raises."""
        route, parameters = self._exact.get(scope["path"]), dict[str, str]()
        if route is None:
            route, parameters = self._find(scope["raw_path"].decode("ascii", "replace"))
        path, methods, handler = route
        context: RequestContext = scope[CONTEXT]
        context.route = path.template
        if scope["method"] not in methods:
            raise HTTPException(405, headers={"Allow": ", ".join((*methods, "OPTIONS"))})
        scope["path_params"] = parameters
        response = await handler(Request(scope, receive, send), path)
        await response(scope, receive, send)

    def _find(self, raw_path: str) -> tuple[_Route, dict[str, str]]:
        """Find a path that is not written as in the table. Raises HTTPException (404)."""
        asked = _SLASHES.sub("/", raw_path).rstrip("/")
        found = self._search(asked) or self._search(VERSION_PREFIX + asked)
        if found is None and asked.startswith(VERSION_PREFIX + "/"):
            found = self._search(asked.removeprefix(VERSION_PREFIX))
        if found is None:
            raise HTTPException(404)
        return found

    def _search(self, asked: str) -> tuple[_Route, dict[str, str]] | None:
        """Find a path as it was sent: an encoded slash belongs to a parameter."""
        if route := self._exact.get(unquote(asked)):
            return route, {}
        for pattern, route in self._patterns:
            if found := pattern.fullmatch(asked):
                return route, {name: unquote(value) for name, value in found.groupdict().items()}
        return None


def _pattern(path: Path) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path.template))
