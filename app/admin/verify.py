"""
The comparison of a partition's index with its log, as a stream of lines.

`GET /admin/v1/verify/{partition}?rate=10000`, with `&quarantine=true` of the quarantine topic, answers with
lines of JSON (`application/x-ndjson`), each an object with a `type`:

    begin       topic, partition, start_offset, end_offset (exclusive), rate; a partition that was divided off
                counts offsets from 0 on, those of its ancestors first
    difference  kind, partition, offset, key, source, message_id, index_offset; the first 100 of them
    progress    offset, records, differences, ratio, seconds, remaining_seconds; one a second
    end         verified (true: no difference), records, differences, seconds
    error       instead of `end`: code and detail of a problem document, with more detail

Kinds of differences: `missing`, `elsewhere`, `content`, `gap` (see dedupe.partition.verifier). It changes
nothing. `rate` is in records a second. One comparison runs at a time (409 `busy`), and it ends when its
reader disconnects.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Path, Query, Response
from fastapi.responses import StreamingResponse

from app.admin.answers import ADMIN_PROBLEMS, BusyError, NotFoundError
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from dedupe.model.clock import Clock
from dedupe.model.errors import GatewayError
from dedupe.model.inherited import offset_in_log, place_of
from dedupe.partition.lane import Lane
from dedupe.partition.verifier import Difference, Verifier
from dedupe.router import Router
from dedupe.storage.inheriting_log import inheriting
from dedupe.storage.log import LogStore

RATE_MIN, RATE_DEFAULT, RATE_MAX = 100, 10_000, 200_000

DIFFERENCES_MAX = 100
"""The limit of listed differences; further ones are counted."""

LINES_MAX = 256
"""The limit of unread lines; the verification waits for a slow reader."""

PROGRESS_S = 1.0
LEFT_S = 30.0
"""A reader that reads no line for this time is treated as disconnected."""


class Verification:
    """One verification, which runs in the ingest's loop, and its unread lines."""

    def __init__(self, lane: Lane, store: LogStore, clock: Clock, rate: int) -> None:
        """Begin. Raises LaneNotActiveError."""
        self._partition = lane.partition
        log_of = partial(store.partition_log, lane.topic)
        self._log = inheriting(log_of(lane.partition), lane.lineage, log_of)
        self._verifier: Verifier = lane.verifier(self._log)
        self._clock = clock
        self._rate = rate
        self._began = clock.monotonic()
        self._differences_sent = 0
        self._lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(LINES_MAX)
        verified = self._verifier.verified
        self._lines.put_nowait(
            {
                "type": "begin",
                "topic": lane.topic,
                "partition": lane.partition,
                "start_offset": verified.position_of(verified.start),
                "end_offset": verified.position_of(verified.end),
                "rate": rate,
            }
        )
        self._task = asyncio.create_task(self._run())

    @property
    def is_over(self) -> bool:
        """Whether another verification may begin."""
        return self._task.done()

    def cancel(self) -> None:
        """End the verification of a reader that has disconnected."""
        self._task.cancel()

    async def next_lines(self) -> bytes:
        """Return at least one line; nothing after the last one."""
        lines = [await self._lines.get()]
        while not self._lines.empty():
            lines.append(self._lines.get_nowait())
        texts = [orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines if line is not None]
        if texts and lines[-1] is None:
            self._lines.put_nowait(None)  # for the next call
        return b"".join(texts)

    async def _run(self) -> None:
        try:
            await self._put(await self._compare())
            await self._put(None)
        except TimeoutError:
            return  # the reader has disconnected
        finally:
            await self._log.close()

    async def _compare(self) -> dict[str, Any]:
        """Return the last line."""
        verified = self._verifier.verified
        reported_at = self._began
        try:
            async with aclosing(self._verifier.run(records_per_s=self._rate)) as steps:
                async for differences in steps:
                    for difference in differences[: DIFFERENCES_MAX - self._differences_sent]:
                        self._differences_sent += 1
                        await self._put(_line_of(difference, self._partition))
                    if (now := self._clock.monotonic()) - reported_at >= PROGRESS_S:
                        reported_at = now
                        await self._put(self._progress(now - self._began))
        except GatewayError as err:
            problem = ADMIN_PROBLEMS.get(err.code, ADMIN_PROBLEMS["internal"])
            return {"type": "error", "code": err.code, "detail": f"{problem.message} ({err})"}
        return {
            "type": "end",
            "verified": verified.differences == 0,
            "records": verified.records,
            "differences": verified.differences,
            "seconds": round(self._clock.monotonic() - self._began, 3),
        }

    async def _put(self, line: dict[str, Any] | None) -> None:
        async with asyncio.timeout(LEFT_S):
            await self._lines.put(line)

    def _progress(self, seconds: float) -> dict[str, Any]:
        verified = self._verifier.verified
        ratio = verified.ratio
        return {
            "type": "progress",
            "offset": verified.position_of(verified.offset),
            "records": verified.records,
            "differences": verified.differences,
            "ratio": round(ratio, 4),
            "seconds": round(seconds, 3),
            "remaining_seconds": round(seconds * (1 - ratio) / ratio, 1) if ratio > 0 else None,
        }


def add_verify(app: FastAPI, router: Router, store: LogStore, clock: Clock, ingest_loop: IngestLoop) -> None:
    """Add the path."""
    running: list[Verification] = []

    def begin(partition: int, rate: int, *, is_quarantine: bool) -> Verification:
        lanes = router.quarantine_lanes if is_quarantine else router.lanes
        if partition >= len(lanes):
            raise NotFoundError(detail=f"there are {len(lanes)} partitions")
        if running and not running[0].is_over:
            raise BusyError
        running[:] = [Verification(lanes[partition], store, clock, rate)]
        return running[0]

    @app.get("/admin/v1/verify/{partition}", dependencies=[READ])
    async def get_verify(
        partition: Annotated[int, Path(ge=0)],
        rate: Annotated[int, Query(ge=RATE_MIN, le=RATE_MAX)] = RATE_DEFAULT,
        quarantine: bool = False,
    ) -> Response:
        """Compare a partition's index with its log, and stream differences and progress as lines."""
        verification = await ingest_loop.read(lambda: begin(partition, rate, is_quarantine=quarantine))

        async def body() -> AsyncIterator[bytes]:
            try:
                while lines := await ingest_loop.run(verification.next_lines):
                    yield lines
            finally:
                ingest_loop.call(verification.cancel)

        return StreamingResponse(body(), media_type="application/x-ndjson")


def _line_of(difference: Difference, partition: int) -> dict[str, Any]:
    """Return a difference of a lane, with the partition in which its record is."""
    partition, offset = place_of(partition, difference.offset)
    index_offset = offset_in_log(difference.index_offset)
    places = {"partition": partition, "offset": offset, "index_offset": index_offset}
    return {"type": "difference", **difference._asdict(), "key": difference.key.hex(), **places}
