"""
Finds a request's path in the table: one look-up for most of them, however many there are.

Slips of those who configure a host are forgiven: a slash too many, a missing /v1 and one too many.
Nothing ever redirects: SDKs take any status below 400 for success and forget the events.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import unquote

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from app.ingest.routes.paths import Kind, Path

Handler: TypeAlias = Callable[[Request, Path], Awaitable[Response]]

VERSION_PREFIX = "/v1"

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
        path = self._exact.get(scope["path"])
        if path is not None:
            return _found(path, {})
        asked = _SLASHES.sub("/", scope["raw_path"].decode("ascii", "replace")).rstrip("/")
        found = self._search(asked) or self._search(VERSION_PREFIX + asked)
        if found is None and asked.startswith(VERSION_PREFIX + "/"):
            found = self._search(asked.removeprefix(VERSION_PREFIX))
        return found or (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See BaseRoute. Raises HTTPException (405)."""
        path: Path = scope["gateway.path"]
        if scope["method"] not in path.methods:
            raise HTTPException(405, headers={"Allow": ", ".join((*path.methods, "OPTIONS"))})
        response = await self._handlers[path.kind](Request(scope, receive, send), path)
        await response(scope, receive, send)

    def _search(self, asked: str) -> tuple[Match, Scope] | None:
        """Find a path as it was sent: an encoded slash belongs to a parameter."""
        if path := self._exact.get(unquote(asked)):
            return _found(path, {})
        for pattern, path in self._patterns:
            if found := pattern.fullmatch(asked):
                return _found(path, {name: unquote(value) for name, value in found.groupdict().items()})
        return None


def _found(path: Path, parameters: dict[str, str]) -> tuple[Match, Scope]:
    return Match.FULL, {
        "gateway.path": path,
        "gateway.route": path.template,
        "path_params": parameters,
    }


def _pattern(path: Path) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path.template))
