"""Claim: a replay sends whatever of the quarantine can be stored, as what it is, or says why it does not."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from app.auth.quotas import Quota, QuotaPolicy
from app.auth.write_keys import OpenKeys
from app.http.body import BodyLimits
from app.ingest.event_limits import EventLimits
from app.ingest.identify import Identifier
from app.ingest.replay import Changes, Result, judge, replay_by
from app.ingest.routes.events import Ingest
from dedupe.decide.admission import NEW
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.quarantine import PIECE_BYTES, Quarantine
from dedupe.model.record import build_record
from dedupe.model.types import Event, LogRecord, Topic
from dedupe.storage.quarantine_reader import Whole, parse_kept
from dedupe.submission import Outcomes

IDENTITY = Identity(b"a secret of the tests")
QUARANTINE = Quarantine(IDENTITY, Topic("events.quarantine", 1))
EVENT = b'{"messageId":"m-1","type":"track","event":"Paid"}'


class TakingRouter:
    """Stores every event, and remembers it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.quarantined: list[Event] = []

    async def submit(self, events: Sequence[Event], rejected: Sequence[Event], **_given: Any) -> Outcomes:
        self.events += events
        self.quarantined += rejected
        return Outcomes([NEW] * len(events), list(range(len(events))))


def whole_of(content: bytes, reason: str, *, is_json: bool = True, message_id: str = "") -> Whole:
    wholes: list[Whole] = []
    for event in QUARANTINE.events(
        source="web",
        message_id=message_id,
        fingerprint=fingerprint_of(content),
        content=content,
        reason=reason,
        is_json=is_json,
    ):
        kept = parse_kept(LogRecord(5, *build_record(event, lane_seq=0, timestamp_ms=1)), 0)
        assert kept is not None
        if wholes:
            wholes[0].add(kept)
        else:
            wholes.append(Whole(kept))
    return wholes[0]


async def replayed(
    whole: Whole, *, event_bytes_max: int = 1_000_000, **changes: Any
) -> tuple[Result, TakingRouter]:
    router = TakingRouter()
    ingest = Ingest(
        router=router,  # type: ignore[arg-type]
        identifier=Identifier(IDENTITY, 1, QUARANTINE, EventLimits(event_bytes_max, 32, 20_000_000)),
        write_keys=OpenKeys(QuotaPolicy(Quota(), index_keys_max=1, window_s=1, clock=lambda: 0.0)),
        clock=SystemClock(),
        body_limits=BodyLimits(8_000_000, 4_000_000),
        request_events_max=10,
        answer_timeout_s=5,
    )
    return await replay_by(ingest)(whole, Changes(**changes)), router


async def test_event_is_sent_as_one_whatever_its_fields() -> None:
    content = b'{"messageId":"m-1","type":"track","batch":[{"type":"track"},{"type":"track"}]}'
    result, router = await replayed(whole_of(content, "event_too_deep", message_id="m-1"))
    assert (result.name, result.why, result.events) == ("accepted", None, None)
    assert [event.message_id for event in router.events] == ["m-1"]


async def test_list_of_events_is_sent_as_a_body() -> None:
    content = b"[%b,%b,7]" % (EVENT, EVENT.replace(b"m-1", b"m-2"))
    result, router = await replayed(whole_of(content, "too_many_events", is_json=False))
    assert result.events == {"accepted": 2, "duplicate": 0, "rejected": 1}
    assert (result.name, result.why) == ("accepted", "not_an_object")
    assert [event.message_id for event in router.events] == ["m-1", "m-2"]
    assert [event.reason for event in router.quarantined] == ["not_an_object"]


@pytest.mark.parametrize("form", [b'%b,%b,{"a', b"%b%b", b'%b,,%b],"sentAt":"x"}'])
async def test_events_beyond_the_limit_of_a_damaged_body_are_found(form: bytes) -> None:
    content = form % (EVENT, EVENT.replace(b"m-1", b"m-2"))
    result, router = await replayed(whole_of(content, "too_many_events", is_json=False))
    assert result.events is not None
    assert result.events["accepted"] == 2
    assert [event.message_id for event in router.events] == ["m-1", "m-2"]
    assert all(event.reason == "unreadable" for event in router.quarantined)


@pytest.mark.parametrize(
    "content", [b'"no event"', b"[]", b'{"price":1}', b"[[7]]", b"\xff", b"{", b'"{\\"a\\":1}"']
)
async def test_bytes_without_an_event_are_not_sent(content: bytes) -> None:
    for reason, is_json in (("unreadable", False), ("not_an_object", True)):
        result, router = await replayed(whole_of(content, reason, is_json=is_json))
        assert (result.name, bool(result.why)) == ("skipped", True), result
        assert router.events == router.quarantined == []


@pytest.mark.parametrize("content", [b"7", b"null", b"true"])
def test_scalar_is_skipped_before_it_is_sent(content: bytes) -> None:
    kept = whole_of(content, "not_an_object").kept
    assert judge(kept, Changes()) == Result("skipped", "it is not an event")


@pytest.mark.parametrize(
    "content",
    [
        b'%b,%b],"sentAt":"now"}',
        b"%b%b",
        b'{"type":"tra,%b,%b',
        b'{"batch":[%b,,%b],"writeKey"web"}',
        b'"a":{"b":{"c":1}}},%b,%b',
    ],
)
async def test_events_of_damaged_bytes_are_sent(content: bytes) -> None:
    both = content % (EVENT, EVENT.replace(b"m-1", b"m-2"))
    for reason in ("unreadable", "too_many_events"):
        result, router = await replayed(whole_of(both, reason, is_json=False))
        assert result.name == "accepted"
        assert [event.message_id for event in router.events] == ["m-1", "m-2"]


@pytest.mark.regression("A replay took an object within a torn event for an event.")
@pytest.mark.parametrize(
    "content",
    [
        b'%b,"traits":{"a":1}}',
        b'{"type":"x","list":[%b,',
        b'"list":[%b],"type":"x"}',
        b'{"type":"x","a":%b',
    ],
)
async def test_part_of_a_torn_event_is_not_sent(content: bytes) -> None:
    result, router = await replayed(whole_of(content % EVENT, "unreadable", is_json=False))
    assert (result.name, router.events) == ("skipped", [])


async def test_body_that_was_wrapped_several_times_is_sent() -> None:
    content = EVENT
    for _ in range(4):
        content = orjson.dumps(content.decode())
    result, router = await replayed(whole_of(content, "unreadable", is_json=False))
    assert (result.name, [event.message_id for event in router.events]) == ("accepted", ["m-1"])


async def test_text_that_holds_an_event_is_sent() -> None:
    result, router = await replayed(whole_of(orjson.dumps(EVENT.decode()), "not_an_object"))
    assert (result.name, [event.message_id for event in router.events]) == ("accepted", ["m-1"])


async def test_long_event_is_sent_whole_once_the_limit_allows_it() -> None:
    content = EVENT[:-1] + b',"text":"%b"}' % (b"x" * (2 * PIECE_BYTES))
    whole = whole_of(content, "event_too_large", is_json=False, message_id="m-1")
    result, router = await replayed(whole, event_bytes_max=PIECE_BYTES)
    assert (result.name, "GATEWAY_EVENT_BYTES_MAX" in (result.why or "")) == ("skipped", True)
    assert router.events == router.quarantined == []
    result, router = await replayed(whole)
    assert (result.name, [event.message_id for event in router.events]) == ("accepted", ["m-1"])
    assert orjson.loads(router.events[0].value)["text"] == "x" * (2 * PIECE_BYTES)


async def test_event_with_an_unknown_key_needs_a_source() -> None:
    whole = whole_of(EVENT, "write_key_invalid")
    result, router = await replayed(whole)
    assert (result.name, "--to-source" in (result.why or ""), router.events) == ("skipped", True, [])
    result, router = await replayed(whole, to_source="app")
    assert (result.name, router.events[0].source) == ("accepted", "app")
    _, router = await replayed(whole_of(EVENT, "event_too_deep"), to_source="app")
    assert router.events[0].source == "web"


@pytest.mark.parametrize("reason", ["conflict", "message_id_invalid"])
async def test_event_under_a_new_id_keeps_every_digit_and_level(reason: str) -> None:
    digits = b"123456789012345678901234567890"
    content = b'{"messageId":"m-1","type":"track","amount":%b,"price":0.12345678901234567890123}' % digits
    result, router = await replayed(whole_of(content, reason), may_renew_id=True)
    assert (result.name, digits in router.events[0].value) == ("accepted", True)
    assert b"0.12345678901234567890123" in router.events[0].value
    assert router.events[0].message_id != "m-1"
    deep = b'{"messageId":"m-1","a":' + b"[" * 500 + b"]" * 500 + b"}"
    result, _ = await replayed(whole_of(deep, reason), may_renew_id=True)
    assert (result.name, result.why) == ("rejected", "event_too_deep")


async def test_missing_piece_and_batch_level_fields_are_named() -> None:
    whole = whole_of(b"\xff" * (2 * PIECE_BYTES + 1), "unreadable", is_json=False)
    part = Whole(whole.kept)
    result, router = await replayed(part)
    assert (result.name, result.why, router.events) == (
        "skipped",
        "of its 3 pieces (from 0 on) these are missing: 1, 2",
        [],
    )
    result, router = await replayed(
        whole_of(b'{"context":{"type":"x"}}', "batch_fields_too_large", is_json=False)
    )
    assert (result.name, "batch-level" in (result.why or ""), router.events) == ("skipped", True, [])


async def test_replays_of_a_body_without_ids_are_duplicates() -> None:
    """The ids of its events depend on the record."""
    whole = whole_of(b'[{"type":"track"},{"type":"track"}]', "too_many_events", is_json=False)
    (_, first), (_, second) = [await replayed(whole) for _ in range(2)]
    assert [event.key for event in first.events] == [event.key for event in second.events]
    assert len({event.key for event in first.events}) == 2
