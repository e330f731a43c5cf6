"""
Finds a request's path in the table: one look-up for most of them, however many there are.

Slashes too many are forgiven, since a host that ends in one is a common slip, and nothing ever
redirects: SDKs take any status below 400 for success and forget the events.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from app.routes.paths import Kind, Path

Handler: TypeAlias = Callable[[Request, Path], Awaitable[Response]]

_PARAMETER = re.compile(r"\{(\w+)\}")
_SLASHES = re.compile(r"/+")


class PathTable(BaseRoute):
    """All paths as one route of the application."""

    def __init__(self, paths: Sequence[Path], handlers: Mapping[Kind, Handler]) -> None:
        """Take the paths, and what handles each kind of them."""
        self._handlers = handlers
        self._exact = {path.template: path for path in paths if "{" not in path.template}
        self._patterns = [(_pattern(path), path) for path in paths if "{" in path.template]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See BaseRoute; a method that the path does not know is refused by `handle`."""
        if scope["type"] != "http":
            return Match.NONE, {}
        asked = scope["path"]
        path = self._exact.get(asked)
        if path is not None:
            return Match.FULL, {"gateway.path": path, "gateway.route": path.template}
        return self._search(_SLASHES.sub("/", asked).rstrip("/"))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See BaseRoute. Raises HTTPException (405)."""
        path: Path = scope["gateway.path"]
        if scope["method"] not in path.methods:
            raise HTTPException(405, headers={"Allow": ", ".join((*path.methods, "OPTIONS"))})
        response = await self._handlers[path.kind](Request(scope, receive, send), path)
        await response(scope, receive, send)

    def _search(self, asked: str) -> tuple[Match, dict[str, Any]]:
        if path := self._exact.get(asked):
            return Match.FULL, {"gateway.path": path, "gateway.route": path.template}
        for pattern, path in self._patterns:
            if found := pattern.fullmatch(asked):
                return Match.FULL, {
                    "gateway.path": path,
                    "gateway.route": path.template,
                    "path_params": found.groupdict(),
                }
        return Match.NONE, {}


def _pattern(path: Path) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path.template))
