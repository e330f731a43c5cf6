"""
The paths of the live tail: JSON lines for as long as the reader stays, and the rejections of late.

Not server-sent events, which browsers read without a token. Each line has its kind: `hello` first, `event`,
`missed` where samples were left out, and `beat` after a second without another line.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.admin.ingest_loop import IngestLoop
from app.admin.recent_rejections import Rejection
from app.admin.scopes import READ, WRITE
from app.admin.tail import RATE, VERDICTS, Listener, Tail, Wanted
from app.admin.tail_sample import Sample, document_of
from app.http.errors import RequestError, TooManyConnectionsError
from dedupe.storage.quarantine_reader import Place

PlaceOf: TypeAlias = Callable[[Sample], Awaitable[Place | None]]
"""Returns where in quarantine a rejected event is, if that is known."""

POLL_S = 0.1
"""Between two polls of a listener: waking it would cost the ingest's thread more."""

HEARTBEAT_S = 1.0
"""How soon either end notices that the other one is gone."""

FILTER_CHARS_MAX = 1000

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""A proxy that buffers the answer would show nothing."""


def add_tail(
    app: FastAPI,
    tail: Tail,
    ingest_loop: IngestLoop,
    place_of: PlaceOf,
    *,
    is_ending: Callable[[], bool],
) -> None:
    """
    Add the paths.

    Args:
        app: gets them.
        tail: the source of their lines.
        ingest_loop: the loop that fills it.
        place_of: called in that loop.
        is_ending: whether the process ends, and with it the tail.
    """

    def stream(request: Request, *, is_shown: bool) -> Response:
        wanted = _wanted(request)
        listener = tail.listen(wanted)
        if listener is None:
            raise TooManyConnectionsError(detail="as many look at the live tail as may")
        return _Stream(tail, listener, _lines(listener, is_ending, is_shown=is_shown))

    @app.get("/admin/v1/tail", dependencies=[READ])
    async def get_tail(request: Request) -> Response:
        """Follow events as they are decided, without their content."""
        return stream(request, is_shown=False)

    @app.get("/admin/v1/tail/values", dependencies=[WRITE])
    async def get_tail_values(request: Request) -> Response:
        """Follow events as they are decided, whole if they are not too long."""
        return stream(request, is_shown=True)

    @app.get("/admin/v1/tail/apart", dependencies=[READ])
    async def get_rejections() -> Response:
        """Return the events that were rejected or conflicted last, the newest first."""

        async def find() -> list[dict[str, Any]]:
            return [await described(one) for one in tail.rejections.newest_first()]

        document = {"events": await ingest_loop.run(find)}
        return Response(orjson.dumps(document), media_type="application/json")

    async def described(rejection: Rejection) -> dict[str, Any]:
        place = await place_of(rejection.sample)
        return document_of(rejection.sample) | {
            "reason": tail.reasons.get(rejection.sample.code or ""),
            "times": rejection.times,
            "first_ms": rejection.first_ms,
            "quarantine": place and place._asdict(),
        }


class _Stream(StreamingResponse):
    """Lines for a listener, which is forgotten however this ends, and be it before the first one."""

    def __init__(self, tail: Tail, listener: Listener, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, headers=HEADERS, media_type="application/x-ndjson")
        self._leave = partial(tail.leave, listener)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _lines(
    listener: Listener, is_ending: Callable[[], bool], *, is_shown: bool
) -> AsyncIterator[bytes]:
    yield _line({"kind": "hello", "samples_a_second": RATE})
    silent_s = 0.0
    while not is_ending():
        samples, missed = listener.take()
        lines = [_line({"kind": "event"} | document_of(sample, is_shown=is_shown)) for sample in samples]
        if missed:
            lines.append(_line({"kind": "missed", "events": missed}))
        silent_s += POLL_S
        if lines or silent_s >= HEARTBEAT_S:
            yield b"".join(lines) or _line({"kind": "beat"})
            silent_s = 0.0
        await asyncio.sleep(POLL_S)


def _wanted(request: Request) -> Wanted:
    """Return the filter in a query. Raises RequestError."""
    query = request.query_params
    if any(len(value) > FILTER_CHARS_MAX for value in query.values()):
        raise RequestError(detail=f"a filter has at most {FILTER_CHARS_MAX} characters")
    verdicts = frozenset(name for names in query.getlist("verdict") for name in names.split(",") if name)
    if not verdicts <= set(VERDICTS):
        raise RequestError(detail=f"verdict must be of {', '.join(VERDICTS)}")
    return Wanted(query.get("source") or None, query.get("id") or None, verdicts or None)


def _line(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
