"""Claim: the live tail shows what was decided, never waits, says what it left out, and forgets by itself."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest
from starlette.types import Message

from app.admin.recent_rejections import BYTES_MAX, EVENTS_MAX, RecentRejections
from app.admin.tail import (
    BURST,
    LISTENERS_MAX,
    RATE,
    REJECTIONS_A_REQUEST_MAX,
    WAITING_BYTES_MAX,
    Listener,
    Tail,
    Wanted,
)
from app.admin.tail_sample import VALUE_BYTES_MAX, Sample, document_of
from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.request_context import RequestContext
from app.ingest.receipts import CODES, REASONS
from dedupe.decide.admission import Admission
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Event, Session, Topic
from dedupe.submission import Outcomes
from tests.unit.admin.admin_port import admin_of

NOW_MS = 1_700_000_000_000
NEW, DUPLICATE, CONFLICT = Admission.NEW, Admission.DUPLICATE, Admission.CONFLICT
CONTEXT = RequestContext(MemoryReservation(BodyMemory(0)), source="web", request_id="request-1")


class StillClock:
    def __init__(self) -> None:
        self.s = 100.0
        self.samples = 0  # whose time was asked for

    def now_ms(self) -> int:
        self.samples += 1
        return NOW_MS

    def monotonic(self) -> float:
        return self.s


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def tail(clock: StillClock) -> Tail:
    return Tail(clock, codes=CODES, reasons=REASONS)


def event(message_id: str = "m-1", *, source: str = "web", **fields: Any) -> Event:
    value = orjson.dumps({"messageId": message_id, "type": "track", **fields})
    return Event(message_id.encode().ljust(16), 3, b"f" * 8, source, message_id, value)


def rejected_event(reason: str, **fields: Any) -> Event:
    quarantine = Quarantine(Identity(b"0123456789abcdef"), Topic("events.quarantine", 1))
    content = orjson.dumps(fields)
    fingerprint = content[:8].ljust(8)
    (event,) = quarantine.events(
        source="web", message_id="", fingerprint=fingerprint, content=content, reason=reason
    )
    return event


def decide(tail: Tail, events: Sequence[Event], *admissions: Admission, **known: Any) -> None:
    tail.decided(events, Outcomes(list(admissions), [7] * len(events)), (), replace(CONTEXT, **known))


def listening(tail: Tail, **wanted: Any) -> Listener:
    listener = tail.listen(Wanted(**wanted))
    assert listener is not None
    return listener


def seen(listener: Listener) -> list[tuple[str, str | None, str | None]]:
    samples, _ = listener.take()
    return [(sample.verdict, sample.code, sample.message_id) for sample in samples]


def test_every_admission_has_a_verdict_and_the_code_of_its_receipt(tail: Tail) -> None:
    listener = listening(tail)
    for admission in Admission:
        decide(tail, [event(admission.name)], admission)
    assert seen(listener) == [
        ("accepted", None, "NEW"),
        ("duplicate", None, "REPEAT"),
        ("duplicate", None, "DUPLICATE"),
        ("conflict", "conflict", "CONFLICT"),
        ("duplicate", None, "STALE"),
        ("refused", "sequence_gap", "GAP"),
        ("refused", "sequence_window_exceeded", "TOO_FAR"),
        ("rejected", "session_fenced", "FENCED"),
        ("rejected", "session_expired", "EXPIRED"),
        ("rejected", "record_too_large", "TOO_LARGE"),
        ("rejected", "record_refused", "REFUSED"),
    ]


def test_a_sample_tells_the_place_and_the_age_and_nothing_of_the_content(tail: Tail) -> None:
    listener = listening(tail)
    secret = {"email": "a@example.org"}
    sent = event(event="Bought", timestamp="2023-11-14T22:13:10Z", properties=secret)
    decide(tail, [sent._replace(session=Session(b"c" * 16, b"s" * 16, 5))], NEW, client="phone")
    ((sample,), _) = listener.take()
    assert document_of(sample) == {
        "time_ms": NOW_MS,
        "verdict": "accepted",
        "code": None,
        "source": "web",
        "message_id": "m-1",
        "type": "track",
        "event": "Bought",
        "client": "phone",
        "sequence": 5,
        "partition": 3,
        "offset": 7,
        "age_seconds": 10.0,
        "request_id": "request-1",
    }
    assert document_of(sample, is_shown=True)["value"]["properties"] == secret


@pytest.mark.parametrize("time", [None, 5, "", "yesterday", "2023-11-14T22:13:10+99:99", {}])
def test_a_timestamp_that_is_no_time_is_no_age(time: Any, tail: Tail) -> None:
    listener = listening(tail)
    decide(tail, [event(timestamp=time)], NEW)
    ((sample,), _) = listener.take()
    assert document_of(sample)["age_seconds"] is None


def test_a_long_event_is_told_without_its_fields(tail: Tail) -> None:
    listener = listening(tail)
    decide(tail, [event(properties="x" * VALUE_BYTES_MAX)], NEW)
    ((sample,), _) = listener.take()
    assert sample.value is None
    assert (document_of(sample)["message_id"], document_of(sample, is_shown=True)["value"]) == ("m-1", None)


def test_filters_let_pass_what_fits_all_of_them(tail: Tail) -> None:
    by_source, by_id = listening(tail, source="app"), listening(tail, message_id="m-2")
    by_verdict = listening(tail, verdicts=frozenset({"duplicate"}), source="web")
    decide(tail, [event("m-1"), event("m-2"), event("m-3", source="app")], NEW, DUPLICATE, DUPLICATE)
    assert [name for _, _, name in seen(by_source)] == ["m-3"]
    assert [name for _, _, name in seen(by_id)] == ["m-2"]
    assert [name for _, _, name in seen(by_verdict)] == ["m-2"]


def test_a_listener_gets_so_many_samples_a_second_and_learns_how_many_it_missed(
    tail: Tail, clock: StillClock
) -> None:
    listener = listening(tail)
    many = [event(str(number)) for number in range(1000)]
    decide(tail, many, *[NEW] * 1000)
    samples, missed = listener.take()
    assert (len(samples), missed) == (BURST, 1000 - BURST)
    clock.s += 1
    decide(tail, many, *[NEW] * 1000)
    samples, missed = listener.take()
    assert (len(samples), missed) == (RATE, 1000 - RATE)
    assert listener.take() == ([], 0)


def test_what_a_listener_does_not_take_is_bounded_in_bytes(tail: Tail, clock: StillClock) -> None:
    listener = listening(tail)
    for number in range(400):
        clock.s += 1
        decide(tail, [event(str(number), properties="x" * 15_000)], NEW)
    samples, missed = listener.take()
    assert len(samples) + missed == 400
    assert 0.9 * WAITING_BYTES_MAX < sum(sample.size_bytes for sample in samples) < 1.1 * WAITING_BYTES_MAX
    decide(tail, [event("again")], NEW)
    assert seen(listener) == [("accepted", None, "again")]


def test_listeners_are_bounded_and_only_they_switch_the_tail_on(tail: Tail) -> None:
    assert not tail.is_on
    listeners = [listening(tail) for _ in range(LISTENERS_MAX)]
    assert tail.listen(Wanted()) is None
    assert tail.is_on
    for listener in listeners:
        tail.leave(listener)
    assert not tail.is_on
    assert tail.listen(Wanted()) is not None


def test_refusals_are_told_by_event_where_these_were_known(tail: Tail) -> None:
    listener = listening(tail)
    tail.refused("invalid_json", CONTEXT)
    tail.refused("lane_not_active", replace(CONTEXT, watched=[event("m-1")]))
    tail.refused("outcome_unknown", replace(CONTEXT, watched=[event("m-2")]))
    tail.refused("head_too_large", None)
    assert seen(listener) == [
        ("refused", "invalid_json", None),
        ("refused", "lane_not_active", "m-1"),
        ("unknown", "outcome_unknown", "m-2"),
    ]


def test_an_event_that_the_tail_cannot_read_costs_nobody_an_answer(
    tail: Tail, capsys: pytest.CaptureFixture[str]
) -> None:
    listening(tail)
    decide(tail, [event()], None)  # type: ignore[arg-type]
    assert "the live tail missed a request" in capsys.readouterr().out
    tail.refused("invalid_json", replace(CONTEXT, watched=[cast(Event, object())]))
    assert "the live tail missed a refusal" in capsys.readouterr().out


def test_what_is_kept_apart_is_noted_though_nobody_listens(tail: Tail) -> None:
    decide(tail, [event("m-1"), event("m-2")], CONFLICT, DUPLICATE)
    refused = rejected_event("event_too_deep", messageId="x", type="page")
    tail.decided((), Outcomes([], []), [refused], CONTEXT)
    newest, oldest = tail.rejections.newest_first()
    assert (oldest.sample.code, oldest.sample.message_id, oldest.sample.offset) == ("conflict", "m-1", 7)
    assert (newest.sample.code, document_of(newest.sample)["type"]) == ("event_too_deep", "page")


def test_what_is_sent_again_is_counted_and_becomes_the_newest(tail: Tail) -> None:
    for message_id in ("m-1", "m-2", "m-1"):
        decide(tail, [event(message_id)], CONFLICT)
    assert [(kept.sample.message_id, kept.times) for kept in tail.rejections.newest_first()] == [
        ("m-1", 2),
        ("m-2", 1),
    ]


def test_a_request_costs_no_more_samples_than_are_kept(tail: Tail, clock: StillClock) -> None:
    decide(tail, [event(str(number)) for number in range(2_500)], *[CONFLICT] * 2_500)
    assert clock.samples == REJECTIONS_A_REQUEST_MAX


def test_one_request_does_not_push_out_all_others(tail: Tail) -> None:
    decide(tail, [event("of another request")], CONFLICT)
    decide(tail, [event(str(number)) for number in range(200)], *[CONFLICT] * 200)
    kept = [one.sample.message_id for one in tail.rejections.newest_first()]
    assert (len(kept), kept[0], kept[-1]) == (21, "199", "of another request")


def sample(number: int, *, value: bytes | None = None) -> Sample:
    named = (NOW_MS, "conflict", "conflict", "web", str(number), None, None, 0, 1, None)
    return Sample(*named, value=value, is_wrapped=False, key=str(number).encode())


def test_what_is_kept_apart_is_bounded_in_events_and_bytes() -> None:
    rejections = RecentRejections()
    for number in range(2 * EVENTS_MAX):
        rejections.note(sample(number))
    kept = rejections.newest_first()
    assert (len(kept), kept[0].sample.message_id) == (EVENTS_MAX, str(2 * EVENTS_MAX - 1))
    for number in range(EVENTS_MAX):
        rejections.note(sample(number, value=bytes(VALUE_BYTES_MAX)))
    kept = rejections.newest_first()
    assert 10 < len(kept) < EVENTS_MAX
    assert sum(one.sample.size_bytes for one in kept) <= BYTES_MAX


@pytest.mark.regression("Readers of the tail that left early kept their places for ever.")
async def test_readers_that_leave_before_the_first_line_take_nobodys_place() -> None:
    app, sent = admin_of(), list[Message]()
    path = "/admin/v1/tail"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        await asyncio.sleep(0)  # as where earlier answers are not read yet

    for _ in range(LISTENERS_MAX + 1):
        await app(dict(scope), receive, send)
    statuses = [message["status"] for message in sent if message["type"] == "http.response.start"]
    assert statuses == [200] * (LISTENERS_MAX + 1)
