"""
The paths of the events that this worker holds in memory: a list without their content, and one with it.

Both need the full token. The list and an event without `?value` have field names alone, and leave no line in
the audit log; `?value` does.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Response

from app.admin.answers import NotFoundError, json_answer
from app.admin.event_content import Content, changed_types, hidden, warnings_of
from app.admin.ingest_loop import IngestLoop
from app.admin.recent_events import EVENTS_MAX, Held
from app.admin.scopes import FULL_VALUE
from app.admin.tail import ACCEPTED, CONFLICT, DUPLICATE, Tail, Wanted
from app.admin.tail_routes import COMPARE_S, DiffersIn
from app.admin.tail_sample import Sample, document_of, event_in
from dedupe.model.clock import Clock
from dedupe.model.errors import RetriableError

LIST_MAX = 200
SAME_MAX = 20
EARLIER_MAX = 200
"""The earlier events of a name whose types are compared."""

STEP_EVENTS = 200
"""Events that are parsed in one turn of the admin port's loop."""

Text = Annotated[str, Query(max_length=1000)]


class HeldEvents:
    """Finds events that this worker holds; used in the admin port's loop."""

    def __init__(self, tail: Tail, ingest_loop: IngestLoop, differs_in: DiffersIn, clock: Clock) -> None:
        """Take what `tail` holds; `differs_in` is called in the ingest's loop."""
        self._tail = tail
        self._ingest_loop = ingest_loop
        self._differs_in = differs_in
        self._clock = clock

    async def all(self, after: int = 0) -> list[Held]:
        """Return the events with a number above `after`, at most EVENTS_MAX, newest first."""
        requests = await self._ingest_loop.read(lambda: self._tail.look(self._clock.now_ms()))
        held: list[Held] = []
        for first, request in reversed(requests):
            if first + request.event_count <= after + 1 or len(held) >= EVENTS_MAX:
                break
            samples = self._tail.samples_of(request)
            held += [
                Held(first + at, samples[at]) for at in reversed(range(len(samples))) if first + at > after
            ]
            if len(samples) >= STEP_EVENTS:
                await asyncio.sleep(0)
        return held[:EVENTS_MAX]

    async def matching(self, wanted: Wanted, content: Content, *, after: int, limit: int) -> dict[str, Any]:
        """Return the newest ones that pass, and how many are held."""
        everything = await self.all()
        found: list[dict[str, Any]] = []
        for at, one in enumerate(everything):
            if one.number <= after or len(found) == limit:
                break
            if at % STEP_EVENTS == STEP_EVENTS - 1:
                await asyncio.sleep(0)
            if _passes(one.sample, wanted, content):
                found.append(_document(one) | {"warnings": _warnings(one)})
        return {
            "held": len(everything),
            "held_max": EVENTS_MAX,
            "since_ms": everything[-1].sample.at_ms if everything else None,
            "newest": everything[0].number if everything else 0,
            "events": found,
        }

    async def described(self, number: int, *, is_shown: bool) -> dict[str, Any]:
        """Return one event with all that is known of it. Raises NotFoundError."""
        held = await self.all()
        place = next((at for at, each in enumerate(held) if each.number == number), None)
        if place is None:
            raise NotFoundError(detail="this worker no longer holds the event")
        one, content = held[place], event_in(held[place].sample)
        differs = {"differs": await self._differs(one.sample)} if one.sample.verdict == CONFLICT else {}
        changed = changed_types(content, _alike(content, one, held[place + 1 :]))
        return (
            _document(one)
            | differs
            | {
                "receipt": _receipt(one),
                "warnings": _warnings(one) + changed,
                "arrivals": [_arrival(each) for each in _same(one, held)],
                "value": (content if is_shown else hidden(content)) or None,
                "is_hidden": not is_shown,
            }
        )

    async def _differs(self, sample: Sample) -> list[str] | None:
        async def find() -> list[str] | None:
            return await self._differs_in(sample)

        try:
            return await self._ingest_loop.run(find, limit_s=COMPARE_S)
        except RetriableError:
            return None


def add_events(app: FastAPI, held: HeldEvents) -> None:
    """Add the paths."""

    @app.get("/admin/v1/events", dependencies=[FULL_VALUE])
    async def get_events(
        source: Text = "",
        id: Text = "",
        user: Text = "",
        anonymous_id: Text = "",
        event: Text = "",
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 100,
    ) -> Response:
        """
        Return the newest events of this worker that pass all filters and have a number above `after`.

        Without their content: an event's own path has it.
        """
        wanted, content = Wanted(source or None, id or None), Content(user, anonymous_id, event)
        return json_answer(await held.matching(wanted, content, after=after, limit=limit))

    @app.get("/admin/v1/events/{number}", dependencies=[FULL_VALUE])
    async def get_event(number: Annotated[int, Path(ge=1)], value: str | None = None) -> Response:
        """
        Return one event: its receipt, warnings, every arrival under its id, and of a conflict what differs.

        `value` has its fields without their values; with `?value`, the event itself, which the log notes.
        """
        return json_answer(await held.described(number, is_shown=value is not None))


def _passes(sample: Sample, wanted: Wanted, content: Content) -> bool:
    if wanted.source not in (None, sample.source) or wanted.message_id not in (None, sample.message_id):
        return False
    return not any(content) or (content.may_be_in(sample.value or b"") and content.admits(event_in(sample)))


def _document(held: Held) -> dict[str, Any]:
    return {"number": held.number} | document_of(held.sample)


def _warnings(held: Held) -> list[dict[str, str]]:
    event = event_in(held.sample)
    return warnings_of(event, held.sample.at_ms) if event else []


def _receipt(held: Held) -> dict[str, Any]:
    """Return what the client was told of the event."""
    sample = held.sample
    place = {"partition": sample.partition, "offset": sample.offset} if sample.offset is not None else {}
    code = {} if sample.verdict in (ACCEPTED, DUPLICATE) else {"code": sample.code}
    return {"messageId": sample.message_id} | place | code


def _same(one: Held, held: Sequence[Held]) -> Iterator[Held]:
    """Yield the held events with the same source and id, oldest first."""
    sample = one.sample
    if sample.message_id is None:
        return
    wanted = (sample.source, sample.message_id)
    same = [each for each in held if (each.sample.source, each.sample.message_id) == wanted]
    yield from reversed(same[-SAME_MAX:])


def _arrival(held: Held) -> dict[str, Any]:
    sample = held.sample
    return {"number": held.number, "time_ms": sample.at_ms, "verdict": sample.verdict}


def _alike(content: dict[str, Any], one: Held, earlier: Sequence[Held]) -> Iterator[dict[str, Any]]:
    """Yield earlier events of the same source, type and name, newest first."""
    name = str(content.get("event") or "").encode()
    looked_at = 0
    for each in earlier:
        sample = each.sample
        if sample.source != one.sample.source or name not in (sample.value or b""):
            continue
        looked_at += 1
        if looked_at > EARLIER_MAX:
            return
        other = event_in(sample)
        if (other.get("type"), other.get("event")) == (content.get("type"), content.get("event")):
            yield other
