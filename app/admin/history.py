"""
The last hour of this worker, or of its group: events by verdict, in steps of ten seconds.

It is in memory, and lost at a restart.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI, Request, Response

from app.admin.group import ask_others
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from app.group import GroupLanes
from dedupe.metrics import Tally
from dedupe.model.clock import Clock

STEP_S = 10
STEPS_MAX = 360

HISTORY = "history"
"""Kind of a request between workers: the history of a worker."""

VERDICTS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")
REFUSED_REQUESTS = "refused_requests"


class Step(NamedTuple):
    """The events that were decided in one step."""

    number: int  # of the step that has ended, counted from 1970 by this machine's clock
    events: Tally
    refused_requests: int = 0  # before their events were known


class History:
    """Filled and read in the ingest's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: deque[Step] = deque(maxlen=STEPS_MAX)
        self._counted = Tally()
        self._counted_requests = 0
        self.on_step: Callable[[int], None] = lambda _now_ms: None
        """Called at the end of each step; midnight is one."""

    async def keep(self, totals: Callable[[], Tally], refused_requests: Callable[[], int]) -> None:
        """Close each step at its end, until cancelled."""
        while True:
            now_s = self._clock.now_ms() / 1000
            await asyncio.sleep(STEP_S - now_s % STEP_S + 0.001)
            self.note(totals(), refused_requests())

    def note(self, totals: Tally, refused_requests: int = 0) -> None:
        """
        Close a step; after a pause of the process, one step has all events of the pause.

        Args:
            totals: the answers to events since the start.
            refused_requests: those that were refused before their events were known, since the start.
        """
        self.on_step(self._clock.now_ms())
        now = Tally(**asdict(totals))
        events = Tally(*(getattr(now, name) - getattr(self._counted, name) for name in VERDICTS))
        self._counted = now
        requests = refused_requests - self._counted_requests
        self._counted_requests = refused_requests
        self._steps.append(Step(self._clock.now_ms() // (STEP_S * 1000), events, requests))

    def columns(self) -> dict[str, list[int]]:
        """Return the steps as columns, oldest first: their number, and the events of each verdict."""
        return columns_of(self._steps)


def columns_of(steps: Iterable[Step]) -> dict[str, list[int]]:
    """Return steps as columns; steps of the same number are added."""
    by_number: dict[int, Tally] = {}
    requests: Counter[int] = Counter()
    for number, events, refused_requests in steps:
        by_number[number] = by_number[number] + events if number in by_number else events
        requests[number] += refused_requests
    numbers = sorted(by_number)[-STEPS_MAX:]
    columns = {"number": numbers, REFUSED_REQUESTS: [requests[number] for number in numbers]}
    for name in VERDICTS:
        columns[name] = [getattr(by_number[number], name) for number in numbers]
    return columns


def steps_of(columns: Mapping[str, Any]) -> Iterable[Step]:
    """Return the steps of columns."""
    numbers = columns["number"]
    requests = columns.get(REFUSED_REQUESTS) or [0] * len(numbers)  # other versions have none
    counts = zip(*(columns[name] for name in VERDICTS), strict=True)
    for number, values, refused_requests in zip(numbers, counts, requests, strict=True):
        yield Step(number, Tally(*values), refused_requests)


def add_history(
    app: FastAPI, history: History, group: GroupLanes | None, clock: Clock, ingest_loop: IngestLoop
) -> None:
    """Add the path."""
    if group is not None:

        async def columns_of_this_worker(_body: Any) -> dict[str, Any]:
            return history.columns()

        group.handler.requests[HISTORY] = columns_of_this_worker

    @app.get("/admin/v1/history", dependencies=[READ])
    async def get_history(request: Request) -> Response:
        """Return the last hour of all workers; with `?worker`, only of the one that answers."""
        if group is None or "worker" in request.query_params:
            columns = await ingest_loop.read(history.columns)
            silent: dict[str, str] = {}
        else:
            columns, silent = await ingest_loop.run(lambda: _of_all(group, history))
        numbers = columns.pop("number")
        document = {
            "now_ms": clock.now_ms(),
            "step_seconds": STEP_S,
            "steps_max": STEPS_MAX,
            "silent": silent,
            "time_ms": [number * STEP_S * 1000 for number in numbers],
            **columns,
        }
        return Response(orjson.dumps(document), media_type="application/json")


async def _of_all(group: GroupLanes, history: History) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the sum of all workers that answer, and the errors of the others."""
    others, silent = await ask_others(group, HISTORY)
    steps = list(steps_of(history.columns()))
    for columns in others.values():
        steps += steps_of(columns)
    return columns_of(steps), silent
