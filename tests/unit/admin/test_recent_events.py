"""
Claim: a worker holds its last events within bounds, only while it should, and tells all of one but to those
who may not see its content.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from app.admin.event_content import HIDDEN, Content, changed_types, hidden, warnings_of
from app.admin.event_routes import HeldEvents
from app.admin.ingest_loop import IngestLoop
from app.admin.recent_events import BYTES_MAX, EVENTS_MAX, LINGER_MS
from app.admin.tail import Tail, Wanted
from app.admin.tail_sample import Sample
from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.request_context import RequestContext
from app.ingest.receipts import CODES, REASONS
from dedupe.decide.admission import Admission
from dedupe.model.identity import Identity
from dedupe.model.types import Event
from dedupe.submission import Outcomes
from tests.unit.admin.admin_port import READ_TOKEN, WRITE_TOKEN, admin_of, client_of

NOW_MS = 1_700_000_000_000
ALL, ANY = Wanted(), Content()
NEW, DUPLICATE, CONFLICT = Admission.NEW, Admission.DUPLICATE, Admission.CONFLICT


class SetClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def tail(clock: SetClock) -> Tail:
    return Tail(clock, codes=CODES, reasons=REASONS, is_always_held=True)


@pytest.fixture
async def held(tail: Tail, clock: SetClock) -> HeldEvents:
    ingest_loop = IngestLoop()

    async def differs_in(_sample: Sample) -> list[str] | None:
        return ["properties"]

    return HeldEvents(tail, ingest_loop, differs_in, clock)


def event(message_id: str, source: str = "web", **fields: Any) -> Event:
    value = orjson.dumps({"messageId": message_id, "type": "track", "event": "Paid", "userId": "u1"} | fields)
    key = Identity(b"a secret of the tests").message_key(source, message_id)
    return Event(key, 3, b"f" * 16, source, message_id, value)


def decide(tail: Tail, events: Sequence[Event], admission: Admission = NEW) -> None:
    context = RequestContext(MemoryReservation(BodyMemory(0)), source="web", request_id="request-1")
    assert tail.is_on
    tail.decided(events, Outcomes([admission] * len(events), list(range(len(events)))), [], context)


async def listed(held: HeldEvents, wanted: Wanted = ALL, content: Content = ANY) -> list[str]:
    found = await held.matching(wanted, content, after=0, limit=100)
    return [each["message_id"] for each in found["events"]]


async def test_last_events_are_found_by_every_filter(tail: Tail, held: HeldEvents) -> None:
    decide(tail, [event("a"), event("b", userId="ü", event="Left")])
    decide(tail, [event("c", source="app", userId=None, anonymousId="device-1")])
    assert await listed(held) == ["c", "b", "a"]
    assert await listed(held, Wanted("app")) == ["c"]
    assert await listed(held, Wanted(None, "a")) == ["a"]
    assert await listed(held, content=Content(user="u1")) == ["a"]
    assert await listed(held, content=Content(user="ü")) == ["b"]
    assert await listed(held, content=Content(anonymous_id="device-1")) == ["c"]
    assert await listed(held, content=Content(event="Left")) == ["b"]
    assert await listed(held, content=Content(user="device-1")) == []
    later = await held.matching(Wanted(), Content(), after=2, limit=100)
    assert [each["number"] for each in later["events"]] == [3]
    assert (later["held"], later["newest"], later["held_max"]) == (3, 3, EVENTS_MAX)


async def test_number_of_events_and_their_bytes_are_bounded(tail: Tail, held: HeldEvents) -> None:
    for number in range(EVENTS_MAX // 100 + 5):
        decide(tail, [event(f"{number}-{at}") for at in range(100)])
    everything = await held.all()
    assert len(everything) == EVENTS_MAX
    assert everything[0].number == EVENTS_MAX + 500
    large = event("large", text="x" * 1_000_000)
    for _ in range(40):
        decide(tail, [large])
    assert tail.recent.held_bytes <= BYTES_MAX
    assert 30 <= len(await held.all()) <= 33


async def test_a_duplicate_leads_to_its_original_and_a_conflict_says_what_differs(
    tail: Tail, held: HeldEvents
) -> None:
    decide(tail, [event("a")])
    decide(tail, [event("a")], DUPLICATE)
    decide(tail, [event("a", properties={"total": 2})], CONFLICT)
    duplicate, conflict = await held.described(2, is_shown=False), await held.described(3, is_shown=True)
    assert [(each["number"], each["verdict"]) for each in duplicate["arrivals"]] == [
        (1, "accepted"),
        (2, "duplicate"),
        (3, "conflict"),
    ]
    assert duplicate["receipt"] == {"messageId": "a", "partition": 3, "offset": 0}
    assert conflict["differs"] == ["properties"]
    assert conflict["receipt"]["code"] == "conflict"
    assert conflict["value"]["properties"] == {"total": 2}
    assert (duplicate["value"]["userId"], duplicate["is_hidden"]) == (HIDDEN, True)


async def test_refused_events_and_requests_are_held_too(tail: Tail, held: HeldEvents) -> None:
    context = RequestContext(MemoryReservation(BodyMemory(0)), source="web", request_id="request-1")
    tail.refused("invalid_json", context)
    context.watched = [event("a")]
    tail.refused("outcome_unknown", context)
    found = await held.matching(Wanted(), Content(), after=0, limit=10)
    told = [(each["verdict"], each["code"], each["message_id"]) for each in found["events"]]
    assert told == [("unknown", "outcome_unknown", "a"), ("refused", "invalid_json", None)]


async def test_outside_of_development_events_are_held_only_while_somebody_looks(clock: SetClock) -> None:
    tail = Tail(clock, codes=CODES, reasons=REASONS)
    assert not tail.is_on
    assert tail.look(clock.ms) == []
    decide(tail, [event("a")])
    clock.ms += LINGER_MS
    decide(tail, [event("b")])
    assert len(tail.look(clock.ms)) == 2
    clock.ms += LINGER_MS + 1
    decide(tail, [event("c")])
    assert (tail.is_on, tail.recent.held_bytes) == (False, 0)


def test_warnings_say_what_an_analyst_will_ask() -> None:
    def codes(**fields: Any) -> list[str]:
        return [each["code"] for each in warnings_of(fields, NOW_MS)]

    assert codes(userId="u", timestamp="2023-11-14T22:13:20Z") == []
    assert codes(anonymousId="") == ["no_user"]
    for odd in ("yesterday", 7, "2031-01-01T00:00:00Z", "2001-01-01T00:00:00Z"):
        assert codes(userId="u", timestamp=odd) == ["odd_timestamp"]
    (changed,) = changed_types(
        {"properties": {"total": "three", "n": 1, "new": [], "none": None}},
        [{"properties": {"n": 2.5}}, {"properties": {"total": 3, "none": 1}}, {"properties": {"total": "x"}}],
    )
    assert changed["code"] == "type_changed"
    assert changed["detail"] == "properties.total is a text; it was a number in the event before."


def test_hidden_content_has_its_fields_and_no_value() -> None:
    told = hidden({"userId": "u1", "properties": {"total": 3, "tags": ["a", {"b": None}]}})
    assert told == {"userId": HIDDEN, "properties": {"total": HIDDEN, "tags": [HIDDEN, {"b": HIDDEN}]}}


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [
        ("", "events", 401),
        (READ_TOKEN, "events", 403),
        (WRITE_TOKEN, "events", 200),
        (READ_TOKEN, "events/1", 403),
        (READ_TOKEN, "events/1?value", 403),
        (WRITE_TOKEN, "events/1?value", 404),
    ],
)
async def test_events_need_the_full_token(
    token: str, path: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with client_of(admin_of(admin_token=WRITE_TOKEN, admin_read_token=READ_TOKEN)) as client:
        answer = await client.get(f"/admin/v1/{path}", headers=headers)
        await asyncio.sleep(0)
    assert answer.status_code == status
    is_noted = "shown through the admin port" in capsys.readouterr().out
    assert is_noted == (token == WRITE_TOKEN and "value" in path)
