"""
The paths of the live tail: JSON lines for as long as somebody reads, and what was kept apart last.

Not server-sent events, which browsers read with no token. Each line says its kind: `hello` first, `event`,
`missed` where samples were left out, and `beat` when nothing else was said for a second.
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
from app.admin.scopes import READ, WRITE
from app.admin.tail import RATE, VERDICTS, Listener, Tail, Wanted
from app.admin.tail_apart import Kept
from app.admin.tail_sample import Sample, told
from app.http import RequestError, TooManyConnectionsError
from dedupe.quarantine_reader import Place

PlaceOf: TypeAlias = Callable[[Sample], Awaitable[Place | None]]
"""Where in quarantine an event is that was kept apart, if that is known."""

LOOK_S = 0.1
"""Between two looks at a listener: the ingest's thread wakes nobody, which would cost it more."""

BEAT_S = 1.0
"""How soon a reader that is gone is noticed, and a reader knows that the gateway is."""

FILTER_CHARS_MAX = 1000

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""A proxy that gathers an answer before it passes it on would show nothing."""


def add_tail(
    app: FastAPI,
    tail: Tail,
    ingest_loop: IngestLoop,
    apart_at: PlaceOf,
    *,
    is_ending: Callable[[], bool],
) -> None:
    """
    Add the paths.

    Args:
        app: gets them.
        tail: what they tell.
        ingest_loop: where it is filled.
        apart_at: called in that loop.
        is_ending: whether the process ends, and with it the tail.
    """

    def stream(request: Request, *, is_shown: bool) -> Response:
        wanted = _wanted(request)
        listener = tail.listen(wanted)
        if listener is None:
            raise TooManyConnectionsError(told="as many look at the live tail as may")
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
    async def get_apart() -> Response:
        """Return the events that were rejected or conflicted last, the newest first."""

        async def find() -> list[dict[str, Any]]:
            return [await told_apart(kept) for kept in tail.apart.newest_first()]

        document = {"events": await ingest_loop.run(find)}
        return Response(orjson.dumps(document), media_type="application/json")

    async def told_apart(kept: Kept) -> dict[str, Any]:
        place = await apart_at(kept.sample)
        return told(kept.sample) | {
            "reason": tail.reasons.get(kept.sample.code or ""),
            "times": kept.times,
            "first_ms": kept.first_ms,
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
        lines = [_line({"kind": "event"} | told(sample, is_shown=is_shown)) for sample in samples]
        if missed:
            lines.append(_line({"kind": "missed", "events": missed}))
        silent_s += LOOK_S
        if lines or silent_s >= BEAT_S:
            yield b"".join(lines) or _line({"kind": "beat"})
            silent_s = 0.0
        await asyncio.sleep(LOOK_S)


def _wanted(request: Request) -> Wanted:
    """Return the filter in a query. Raises RequestError."""
    query = request.query_params
    if any(len(value) > FILTER_CHARS_MAX for value in query.values()):
        raise RequestError(told=f"a filter has at most {FILTER_CHARS_MAX} characters")
    verdicts = frozenset(name for told in query.getlist("verdict") for name in told.split(",") if name)
    if not verdicts <= set(VERDICTS):
        raise RequestError(told=f"verdict must be of {', '.join(VERDICTS)}")
    return Wanted(query.get("source") or None, query.get("id") or None, verdicts or None)


def _line(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
