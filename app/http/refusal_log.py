"""
The log of refused requests: one line for each code in an interval.

A line has the request id of the answer, the path and the source. Only words of the gateway's own paths are
logged: others may be secrets.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from starlette.types import Scope

from app.http.refusal_counts import RefusalCounts
from app.http.request_context import CONTEXT, RequestContext
from app.http.sdk_library import OTHER, library_of

INTERVAL_S = 10.0
SEGMENTS_MAX = 8

Watch: TypeAlias = Callable[[str, RequestContext | None], None]
"""Called with the code and the request of each refusal. Must not raise."""

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Code:
    """The state of one code."""

    next_at: float = 0.0
    unlogged: int = 0


class RefusalLog:
    """Logs refusals, and counts them by code and sender."""

    def __init__(
        self,
        path_words: Collection[str] = (),
        *,
        counts: RefusalCounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path_words`: words of paths that may be logged; `clock`: in seconds."""
        self._path_words = frozenset(path_words) | {""}
        self._clock = clock
        self._codes: dict[str, _Code] = {}
        self.counts = counts or RefusalCounts()
        self.watch: Watch | None = None

    def note(
        self, code: str, status: int, *, detail: str, scope: Scope | None, is_refusal: bool = True
    ) -> None:
        """
        Log a refusal, or count it for the code's next line.

        Args:
            code: of the error.
            status: of the answer.
            detail: of the error.
            scope: of the request; None for a head that cannot be parsed.
            is_refusal: False for damage of a body, which says nothing about the request's events.
        """
        self.count(code, status, scope, is_refusal=is_refusal)
        entry = self._codes.setdefault(code, _Code())
        now = self._clock()
        if now < entry.next_at:
            entry.unlogged += 1
            return
        context = _context_of(scope)
        report = logger.info if status < 500 else logger.warning
        report(
            "request refused",
            code=code,
            status=int(status),
            detail=detail,
            request_id=context.request_id if context else None,
            path=self._known_words(scope["path"] if scope else ""),
            source=context.source if context else None,
            more_since_last_line=entry.unlogged,
        )
        entry.next_at, entry.unlogged = now + INTERVAL_S, 0

    def count(self, code: str, status: int, scope: Scope | None, *, is_refusal: bool = True) -> None:
        """Count a refusal without a line; see `note`."""
        context = _context_of(scope)
        self.counts.note(
            code,
            status,
            context.source if context else None,
            library_of(context.headers) if context else OTHER,
            is_before_events=is_refusal and (context is None or not context.has_counted_events),
        )
        if is_refusal and self.watch is not None:
            self.watch(code, context)

    def _known_words(self, path: str) -> str:
        segments = path.split("/")[: SEGMENTS_MAX + 1]
        return "/".join(segment if segment in self._path_words else "*" for segment in segments)


def _context_of(scope: Scope | None) -> RequestContext | None:
    return scope.get(CONTEXT) if scope else None
