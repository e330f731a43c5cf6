"""
The paths of the live tail: JSON lines while the reader is connected, and the newest rejections.

Not server-sent events, for which browsers send no token. Each line has a kind: first `hello`, then `event`,
`missed` with a number of samples, and `beat` after a second without another line.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.admin.ingest_loop import IngestLoop
from app.admin.recent_rejections import Rejection
from app.admin.scopes import READ, WRITE
from app.admin.tail import CONFLICT, RATE, VERDICTS, Listener, Tail, Wanted
from app.admin.tail_sample import Sample, document_of
from app.http.errors import RequestError, TooManyConnectionsError
from dedupe.model.errors import RetriableError
from dedupe.storage.quarantine_reader import Place

PlaceOf: TypeAlias = Callable[[Sample], Awaitable[Place | None]]
"""Returns the place of a rejected event in quarantine, None if it is unknown."""

DiffersIn: TypeAlias = Callable[[Sample], Awaitable[list[str] | None]]
"""Returns the fields in which a conflicting event differs from the stored one, None if they are unknown."""

COMPARED_MAX = 5
"""The conflicts of one poll that are compared with the log."""

POLL_S = 0.1
"""The interval of polls of a listener: a wake-up would cost the ingest's thread more."""

HEARTBEAT_S = 1.0
"""The longest pause between two lines, by which both sides detect a lost connection."""

COMPARE_S = HEARTBEAT_S / 2
"""The limit of comparisons of one poll, less than the longest pause."""

FILTER_CHARS_MAX = 1000

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies must not buffer the answer."""


def add_tail(
    app: FastAPI,
    tail: Tail,
    ingest_loop: IngestLoop,
    place_of: PlaceOf,
    differs_in: DiffersIn,
    *,
    is_ending: Callable[[], bool],
) -> None:
    """
    Add the paths.

    Args:
        app: the application.
        tail: the source of the lines.
        ingest_loop: the loop that fills it.
        place_of: called in that loop.
        differs_in: called in that loop.
        is_ending: whether the process ends, and with it the tail.
    """

    def stream(request: Request, *, is_shown: bool) -> Response:
        wanted = _wanted(request)
        listener = tail.listen(wanted)
        if listener is None:
            raise TooManyConnectionsError(detail="the live tail has its maximum of readers")
        compared = partial(_compared, ingest_loop, differs_in)
        return _Stream(tail, listener, _lines(listener, is_ending, compared, is_shown=is_shown))

    @app.get("/admin/v1/tail", dependencies=[READ])
    async def get_tail(request: Request) -> Response:
        """Stream events as they are decided, without their content."""
        return stream(request, is_shown=False)

    @app.get("/admin/v1/tail/values", dependencies=[WRITE])
    async def get_tail_values(request: Request) -> Response:
        """Stream events as they are decided, with the content of those that are not too long."""
        return stream(request, is_shown=True)

    @app.get("/admin/v1/tail/apart", dependencies=[READ])
    async def get_rejections() -> Response:
        """Return the newest rejected and conflicting events, newest first."""

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
            "differs": await differs_in(rejection.sample),
        }


class _Stream(StreamingResponse):
    """Lines for a listener, which is removed at every end, also before the first line."""

    def __init__(self, tail: Tail, listener: Listener, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, headers=HEADERS, media_type="application/x-ndjson")
        self._leave = partial(tail.leave, listener)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _compared(
    ingest_loop: IngestLoop, differs_in: DiffersIn, samples: Sequence[Sample]
) -> dict[int, list[str] | None]:
    """Return by its index how a conflict differs, of the first ones."""
    conflicts = [index for index, sample in enumerate(samples) if sample.verdict == CONFLICT]

    async def compare() -> dict[int, list[str] | None]:
        return {index: await differs_in(samples[index]) for index in conflicts[:COMPARED_MAX]}

    if not conflicts:
        return {}
    try:
        return await ingest_loop.run(compare, limit_s=COMPARE_S)
    except RetriableError:
        return {}


async def _lines(
    listener: Listener,
    is_ending: Callable[[], bool],
    compared: Callable[[Sequence[Sample]], Awaitable[dict[int, list[str] | None]]],
    *,
    is_shown: bool,
) -> AsyncIterator[bytes]:
    yield _line({"kind": "hello", "samples_a_second": RATE})
    silent_s = 0.0
    while not is_ending():
        samples, missed = listener.take()
        differs = await compared(samples)
        lines = [
            _line(
                {"kind": "event"}
                | document_of(sample, is_shown=is_shown)
                | ({"differs": differs.get(index)} if sample.verdict == CONFLICT else {})
            )
            for index, sample in enumerate(samples)
        ]
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
