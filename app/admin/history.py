"""
The last hour of this worker, or of its group: what became of events, in steps of ten seconds.

Kept in memory, from the totals that are counted anyway: after a restart it begins anew.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI, Request, Response

from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from app.group import GroupLanes
from dedupe.clock import Clock
from dedupe.metrics import Tally

STEP_S = 10
STEPS_MAX = 360

HISTORY = "history"
"""Kind of a question: a worker's own part of the history."""

ANSWER_S = 2.0
"""How long another worker may take to answer before it counts as silent."""

VERDICTS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")


class Step(NamedTuple):
    """What was decided between the step before and this one."""

    number: int  # of the step that has ended, counted from 1970 by this machine's clock
    events: Tally


class History:
    """Filled and read in the ingest's loop."""

    def __init__(self, clock: Clock) -> None:
        """Begin empty."""
        self._clock = clock
        self._steps: deque[Step] = deque(maxlen=STEPS_MAX)
        self._counted = Tally()

    async def keep(self, totals: Callable[[], Tally]) -> None:
        """Note for ever what the totals have become, at the end of each step."""
        while True:
            now_s = self._clock.now_ms() / 1000
            await asyncio.sleep(STEP_S - now_s % STEP_S + 0.001)
            self.note(totals())

    def note(self, totals: Tally) -> None:
        """Close a step; after a pause of the process, one step has all that came in it."""
        now = Tally(**asdict(totals))
        events = Tally(*(getattr(now, name) - getattr(self._counted, name) for name in VERDICTS))
        self._counted = now
        self._steps.append(Step(self._clock.now_ms() // (STEP_S * 1000), events))

    def columns(self) -> dict[str, list[int]]:
        """Return the steps as columns, oldest first: their number, and the events of each verdict."""
        return columns_of(self._steps)


def columns_of(steps: Iterable[Step]) -> dict[str, list[int]]:
    """Return steps as columns; those of one number are one."""
    by_number: dict[int, Tally] = {}
    for number, events in steps:
        by_number[number] = by_number[number] + events if number in by_number else events
    numbers = sorted(by_number)[-STEPS_MAX:]
    columns = {"number": numbers}
    for name in VERDICTS:
        columns[name] = [getattr(by_number[number], name) for number in numbers]
    return columns


def steps_of(columns: Mapping[str, Any]) -> Iterable[Step]:
    """Return columns as steps again."""
    counts = zip(*(columns[name] for name in VERDICTS), strict=True)
    for number, values in zip(columns["number"], counts, strict=True):
        yield Step(number, Tally(*values))


def add_history(
    app: FastAPI, history: History, group: GroupLanes | None, clock: Clock, ingest_loop: IngestLoop
) -> None:
    """Add the path."""
    if group is not None:

        async def columns_of_this_worker(_body: Any) -> dict[str, Any]:
            return history.columns()

        group.host.answers[HISTORY] = columns_of_this_worker

    @app.get("/admin/v1/history", dependencies=[READ])
    async def get_history(request: Request) -> Response:
        """Return the last hour of all workers; with `?worker`, of the one that is asked alone."""
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
    """Return the sum of all workers that answer, and why the others do not."""
    keeper = group.keeper
    questions: dict[str, Awaitable[Any]] = {
        name: keeper.neighbours.ask(name, HISTORY, None, ANSWER_S)
        for name in keeper.assignment.addresses
        if name != keeper.worker and keeper.neighbours.is_up(name)
    }
    answers = await asyncio.gather(*questions.values(), return_exceptions=True)
    steps = list(steps_of(history.columns()))
    silent = {
        name: "there is no link to it"
        for name in keeper.assignment.addresses
        if name != keeper.worker and name not in questions
    }
    for name, answer in zip(questions, answers, strict=True):
        if isinstance(answer, BaseException):
            silent[name] = str(answer)
        else:
            steps += steps_of(answer)
    return columns_of(steps), silent
