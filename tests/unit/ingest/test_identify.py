"""
Claim: an event's identity follows from what was sent alone, its record says all that is known, and
whatever cannot be an event is kept with a reason, without harm to its batch.
"""

import asyncio
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ksuid import Ksuid

from app.http.errors import BatchMissingError, InvalidJSONError
from app.ingest.client_sessions import ClientSession, client_session_of
from app.ingest.deep_json import dumps_any, is_deeper, is_deeper_json
from app.ingest.event_limits import STEP_BYTES, EventLimits
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.items import Fragment, Oversize, Packed
from app.ingest.large_json import JSONLimits
from app.ingest.message_ids import derived_id, fresh_id
from app.ingest.parse import Parse, parse_batch, parse_event, parse_events
from app.ingest.payload import Payload
from app.settings.limits import RECORD_MARGIN_BYTES
from dedupe.model.identity import MESSAGE_ID_BYTES_MAX, Identity, canonical_content, fingerprint_of
from dedupe.model.quarantine import Quarantine
from dedupe.model.record import FLAG_ID_ASSIGNED, FLAG_NOT_IDEMPOTENT
from dedupe.model.routing import partition_of
from dedupe.model.types import RECORD_OVERHEAD_BYTES, Event, Session, Topic

IDENTITY = Identity(b"a secret of 24 bytes....")
QUARANTINE = Quarantine(IDENTITY, Topic("events.quarantine", 1))
LIMITS = EventLimits(event_bytes_max=2_000, event_depth_max=6, request_bytes_max=100_000)
RECEIVED_MS = 1_795_291_872_007
RECEIVED_AT = "2026-11-21T20:11:12.007Z"
PARTITIONS = 8
BATCH_SENT_AT = "2026-11-21T20:11:11.000Z"
IP = "2001:db8::7"


def identifier(limits: EventLimits = LIMITS, *ignore: str) -> Identifier:
    return Identifier(
        IDENTITY,
        PARTITIONS,
        QUARANTINE,
        limits,
        fingerprint_ignore=frozenset(ignore),
        random_bytes=lambda count: b"\x07" * count,
    )


def identify(
    items: list[Any], *, shared: dict[str, Any] | None = None, arrival: Arrival | None = None
) -> Identified:
    payload = Payload(items, None, shared or {})
    return identified(identifier(), payload, arrival or Arrival("web", RECEIVED_MS))


def identified(by: Identifier, payload: Payload, arrival: Arrival) -> Identified:
    found = Identified()
    assert not found.take(by.identify(payload, arrival))
    return found


def told(found: Identified) -> list[tuple[int, str | None, str]]:
    """Return what receipts tell of rejections."""
    return [(index, message_id, code) for index, message_id, code, _ in found.rejections]


def test_fragment_is_quarantined_and_identified_by_its_bytes() -> None:
    first, moved, other = (
        identify([Fragment(place, content, "unreadable")])
        for place, content in ((0, b'{"a":"\xff'), (9, b'{"a":"\xff'), (0, b'{"a":"\xfe'))
    )
    assert told(first) == [(0, None, "unreadable")]
    assert first.quarantined[0].key == moved.quarantined[0].key != other.quarantined[0].key
    assert first.quarantined[0].fingerprint == fingerprint_of(b'{"a":"\xff')
    assert not first.events


def parsed(parse: Parse, body: bytes) -> Payload:
    async def turn(_size_bytes: int) -> None:
        pass

    return asyncio.run(parse(body, JSONLimits(events_max=100, event_bytes_max=2_000), turn))


def only_event(item: dict[str, Any], **surroundings: Any) -> Event:
    found = identify([item], **surroundings)
    assert found.rejections == []
    (event,) = found.events
    return event


def loads_strictly(value: bytes) -> Any:
    """Parse JSON, and fail on a key that stands twice."""
    import json

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in items}) == len(items), items
        return dict(items)

    return json.loads(value, object_pairs_hook=pairs)


# ---- the record's value


NESTED = st.none() | st.just("text") | st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "messageId": st.none() | st.sampled_from(["id-1", "x" * 255]),
        "type": st.none() | st.sampled_from(["page", ""]),
        "sentAt": st.none() | st.just("2001-01-01T00:00:00Z"),
        "receivedAt": st.just("forged"),
        "writeKey": st.just("a key"),
        "_metadata": st.just({"retryCount": 1}),
        "context": NESTED,
        "integrations": NESTED,
        "event": st.just("Order"),
        "retries": st.just(3),
    },
)
SHARED = st.fixed_dictionaries(
    {}, optional={"sentAt": st.just(BATCH_SENT_AT) | st.just([1]), "context": NESTED, "integrations": NESTED}
)


def expected_value(event: dict[str, Any], shared: dict[str, Any], message_id: str) -> dict[str, Any]:
    """Say plainly what a record holds."""
    value = {name: field for name, field in event.items() if name != "writeKey"}
    for name in ("context", "integrations"):
        batch_level = shared.get(name)
        if isinstance(batch_level, dict) and batch_level:
            if value.get(name) is None:
                value[name] = batch_level
            elif isinstance(value[name], dict):
                value[name] = batch_level | value[name]
    if value.get("sentAt") is None and isinstance(shared.get("sentAt"), str):
        value["sentAt"] = shared["sentAt"]
    if value.get("type") is None:
        value["type"] = "track"
    return value | {"messageId": message_id, "receivedAt": RECEIVED_AT}


@settings(max_examples=500)
@given(EVENTS, SHARED)
def test_value_is_what_was_sent_and_what_is_known(event: dict[str, Any], shared: dict[str, Any]) -> None:
    sent = orjson.dumps(event)
    found = only_event(event, shared=shared)
    assert loads_strictly(found.value) == expected_value(event, shared, found.message_id)
    assert orjson.dumps(event) == sent, "the parsed event must not change"


@settings(max_examples=200)
@given(EVENTS, SHARED)
def test_identity_follows_from_the_event_alone(event: dict[str, Any], shared: dict[str, Any]) -> None:
    found = only_event(event, shared=shared)
    assert found.key == IDENTITY.message_key("web", found.message_id)
    assert found.partition == partition_of(found.key, PARTITIONS)
    assert found.fingerprint == fingerprint_of(canonical_content(event))
    if event.get("messageId") is not None:
        assert (found.message_id, found.flags) == (event["messageId"], 0)


def test_type_comes_from_the_path_where_the_event_has_none() -> None:
    arrival = Arrival("web", RECEIVED_MS, default_type="page")
    assert orjson.loads(only_event({"messageId": "1"}, arrival=arrival).value)["type"] == "page"
    assert orjson.loads(only_event({"messageId": "1", "type": "x"}, arrival=arrival).value)["type"] == "x"


def test_fields_named_by_the_operator_are_recorded_but_not_compared() -> None:
    one, other = (
        identified(
            identifier(LIMITS, "attempt"),
            Payload([{"messageId": "1", "type": "x", "attempt": n}], None, {}),
            Arrival("web", 1),
        ).events[0]
        for n in (1, 2)
    )
    assert one.fingerprint == other.fingerprint
    assert [orjson.loads(event.value)["attempt"] for event in (one, other)] == [1, 2]


def test_sources_have_ids_of_their_own() -> None:
    one = only_event({"messageId": "1"}, arrival=Arrival("web", RECEIVED_MS))
    other = only_event({"messageId": "1"}, arrival=Arrival("ios", RECEIVED_MS))
    assert one.key != other.key


# ---- message ids


@pytest.mark.parametrize(
    "message_id", ["x", " padded ", "x" * 255, "é" * 127, "\u0000", "a\u200bb", "\U0001f600"]
)
def test_valid_message_id_is_taken_as_it_is(message_id: str) -> None:
    event = only_event({"messageId": message_id, "type": "track"})
    assert event.message_id == message_id
    assert orjson.loads(event.value)["messageId"] == message_id


@pytest.mark.parametrize(
    "message_id", ["x" * 256, "é" * 128, 10**255, 1.5, True, False, [], {}, ["id"], 1.1805916207174113e21]
)
def test_invalid_message_id_is_rejected(message_id: object) -> None:
    found = identify([{"messageId": message_id, "event": "kept"}])
    assert found.events == []
    assert told(found) == [(0, None, "message_id_invalid")]
    (kept,) = found.quarantined
    assert (kept.message_id, kept.reason) == ("", "message_id_invalid")
    stored = orjson.loads(kept.value)["event"]
    assert (stored["event"], stored["type"]) == ("kept", "track")


def test_absent_message_id_is_assigned_afresh_and_said_to_be() -> None:
    event = only_event({"event": "x"})
    assert event.flags == FLAG_ID_ASSIGNED | FLAG_NOT_IDEMPOTENT
    ksuid = Ksuid.from_base62(event.message_id)
    assert (ksuid.timestamp, ksuid.payload) == (RECEIVED_MS // 1000, b"\x07" * 16)
    assert orjson.loads(event.value)["messageId"] == event.message_id


def test_idempotency_key_makes_assigned_ids_repeatable() -> None:
    arrival = Arrival("web", RECEIVED_MS, idempotency_key=b"order-17")
    later = arrival._replace(received_ms=RECEIVED_MS + 60_000)
    items = [{"event": "a", "timestamp": "2026-11-21T20:00:00Z"}, {"event": "b"}, {"messageId": "own"}]
    first, again = identify(items, arrival=arrival), identify(items, arrival=later)
    assert [event.message_id for event in first.events] == [event.message_id for event in again.events]
    assert [event.key for event in first.events] == [event.key for event in again.events]
    assert [event.flags for event in first.events] == [FLAG_ID_ASSIGNED, FLAG_ID_ASSIGNED, 0]
    assert len({event.message_id for event in first.events}) == 3


@pytest.mark.regression("An event without an id was stored again when its timestamp changed at each try.")
@pytest.mark.parametrize("timestamp", ["2026-11-21T20:00:01Z", None, 5, ""])
def test_idempotent_event_stays_the_same_whatever_its_timestamp_is_at_each_try(timestamp: object) -> None:
    arrival = Arrival("web", RECEIVED_MS, idempotency_key=b"order-17")
    first = only_event({"event": "a", "timestamp": "2026-11-21T20:00:00Z"}, arrival=arrival)
    again = only_event({"event": "a", "timestamp": timestamp}, arrival=arrival)
    assert (first.message_id, first.fingerprint) == (again.message_id, again.fingerprint)
    assert orjson.loads(again.value)["timestamp"] == timestamp
    other = only_event({"event": "b", "timestamp": timestamp}, arrival=arrival)
    assert (other.message_id, other.fingerprint) != (again.message_id, again.fingerprint)


def test_timestamp_tells_contents_apart_where_the_client_named_the_event() -> None:
    arrival = Arrival("web", RECEIVED_MS, idempotency_key=b"order-17")
    one, other = (only_event({"messageId": "1", "timestamp": time}, arrival=arrival) for time in ("a", "b"))
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("source", "idempotency_key", "index", "expected"),
    [
        ("web", b"order-17", 0, "YW7tvBCmiuFy9kJWBKCw6AZ5AgD"),
        ("web", b"order-17", 1, "BRVILCIff43cQ9IAG5NwbsdJc2N"),
        ("b\u00fcro", b"\xff", 2_499, "HjiQV7W3MrvVxvof6QL6sYpHodG"),
    ],
)
def test_derived_ids_are_frozen(source: str, idempotency_key: bytes, index: int, expected: str) -> None:
    assert derived_id(source, idempotency_key, index) == expected


def test_derived_ids_differ_by_source_key_and_index() -> None:
    parts = [("web", b"k", 0), ("we", b"bk", 0), ("web", b"k", 1), ("ios", b"k", 0), ("web", b"l", 0)]
    assert len({derived_id(*part) for part in parts}) == len(parts)


@pytest.mark.parametrize(
    ("received_ms", "seconds"),
    [(RECEIVED_MS, RECEIVED_MS // 1000), (0, 1_400_000_000), (2**63, 1_400_000_000)],
)
def test_fresh_id_carries_its_arrival_if_it_can(received_ms: int, seconds: int) -> None:
    assert Ksuid.from_base62(fresh_id(received_ms, b"\x07" * 16)).timestamp == seconds


# ---- types


@pytest.mark.parametrize("event_type", ["track", "", "x" * 100, "é" * 100, "Order Done!", "\u200b", "\u2028"])
def test_text_is_taken_as_a_type(event_type: str) -> None:
    value = orjson.loads(only_event({"messageId": "1", "type": event_type}).value)
    assert value["type"] == event_type


@pytest.mark.parametrize(
    "event_type", ["\u0000", "tr\u0000ack", "a\nb", "\x1f", "\x7f", "\x85", "x" * 101, 5, True, [], {}, ["a"]]
)
@pytest.mark.parametrize("message_id", ["1", None])
def test_type_that_no_table_could_have_for_a_key_is_rejected(event_type: object, message_id: object) -> None:
    found = identify([{"messageId": message_id, "type": event_type}, {"messageId": "2"}])
    assert [event.message_id for event in found.events] == ["2"]
    assert told(found) == [(0, message_id, "type_invalid")]
    assert orjson.loads(found.quarantined[0].value)["event"]["type"] == event_type


@pytest.mark.regression("A type of null passed unchecked.")
@pytest.mark.parametrize("own", [{}, {"type": None}])
def test_type_of_the_path_is_judged_where_the_event_has_none(own: dict[str, Any]) -> None:
    arrival = Arrival("web", RECEIVED_MS, default_type="a\u0000")
    found = identify([{"messageId": "1", **own}, {"messageId": "2", "type": "page"}], arrival=arrival)
    assert told(found) == [(0, "1", "type_invalid")]
    assert len(found.events) == 1


# ---- stored records sent again


def test_stored_session_decides_where_the_request_names_one_too() -> None:
    """A single event with a client session has its fields in its record, and so at the top of a replay."""
    request = Arrival("web", RECEIVED_MS, session=client_session("c1"))
    stored = Session(b"c" * 16, b"s" * 16, sequence=3, epoch=1, acknowledged_through=2)
    items = [{"messageId": "1", "sequence": 7}, {"messageId": "2", "sequence": 8}]
    arrival = Arrival("web", RECEIVED_MS, stored_sessions=[stored, None])
    alone = identify(items, arrival=arrival)
    both = identify(items, arrival=arrival._replace(session=request.session))
    assert [told(alone), told(both)] == [[], []]
    for found in (alone, both):
        assert [event.session for event in found.events] == [stored, None]
        assert found.events[0].key == IDENTITY.sequence_keys(b"c" * 16, b"s" * 16)((3).to_bytes(8, "big"))
        assert found.events[0].partition == partition_of(b"c" * 16, PARTITIONS)
        assert found.events[0].secondary_key == IDENTITY.secondary_key("web", b"c" * 16, "1")
        assert found.events[1].key == IDENTITY.message_key("web", "2")


def client_session(client: str) -> ClientSession:
    session = "1srOrx2ZWZBpBUvZwXKQmoEYga2"
    headers = {b"gateway-client": client.encode(), b"gateway-session": session.encode()}
    return client_session_of(headers, Payload([], None, {}), IDENTITY, "web")


# ---- what is no event


def test_bad_items_do_not_harm_their_batch() -> None:
    deep: Any = "leaf"
    for _ in range(6):
        deep = [deep]
    items = [
        {"messageId": "a"},
        5,
        {"messageId": "b", "properties": "x" * 2_000},
        {"messageId": "c", "properties": deep},
        {"messageId": []},
        {"messageId": "d"},
        None,
    ]
    found = identify(items)
    assert [event.message_id for event in found.events] == ["a", "d"]
    assert found.indexes() == [0, 5]
    assert told(found) == [
        (1, None, "not_an_object"),
        (2, "b", "event_too_large"),
        (3, "c", "event_too_deep"),
        (4, None, "message_id_invalid"),
        (6, None, "not_an_object"),
    ]
    assert [event.reason for event in found.quarantined] == [code for _, _, code in told(found)]


@pytest.mark.parametrize("item", [None, True, 5, 1.5, "text", [], [{"messageId": "1"}]])
def test_item_that_is_no_object_is_kept_as_it_is(item: object) -> None:
    (kept,) = identify([item]).quarantined
    assert orjson.loads(kept.value)["event"] == item


def test_rejected_event_is_kept_once_however_often_it_is_sent() -> None:
    tries = [
        {
            "messageId": True,
            "event": "x",
            "sentAt": sent_at,
            "_metadata": {"retryCount": count},
            "writeKey": "k",
        }
        for count, sent_at in enumerate(["a", "b"])
    ]
    one, other = identify(list(tries)).quarantined
    assert one.key == other.key
    assert b"writeKey" not in one.value


def test_size_is_judged_with_what_is_added_before_it_is_added() -> None:
    context = {"page": "x" * 1_500}
    fits = {"messageId": "1", "type": "track", "event": "x" * 300}
    assert identify([fits], shared={"context": context}).rejections == []
    for too_large in (
        {"event": "x" * 500},
        {"event": "x" * 500, "context": {"a": 1}},
        {"event": "x" * 500, "sentAt": ""},
    ):
        found = identify([fits | too_large], shared={"context": context})
        assert [code for _, _, code in told(found)] == ["event_too_large"]
        assert b"page" not in found.quarantined[0].value


@pytest.mark.parametrize("added", [0, 1])
def test_what_changes_between_tries_does_not_change_whether_an_event_fits(added: int) -> None:
    room = 2_000 - len(orjson.dumps({"messageId": "1", "event": ""})) + added
    event = {"messageId": "1", "event": "x" * room}
    tries: list[Any] = [
        (event, {}, None),
        (event, {"sentAt": BATCH_SENT_AT}, IP),
        (event | {"sentAt": BATCH_SENT_AT, "_metadata": {"retryCount": 1}, "writeKey": "k"}, {}, None),
        (event | {"receivedAt": "x" * 5_000}, {"sentAt": "x" * 100}, "203.0.113.9"),
    ]
    for item, shared, client_ip in tries:
        found = identify([item], shared=shared, arrival=Arrival("web", RECEIVED_MS, client_ip=client_ip))
        assert [code for _, _, code in told(found)] == ["event_too_large"] * added
        if found.events:
            margin = RECORD_MARGIN_BYTES - RECORD_OVERHEAD_BYTES - 5 * MESSAGE_ID_BYTES_MAX
            assert len(found.events[0].value) <= LIMITS.event_bytes_max + margin


@pytest.mark.parametrize("shared", [{}, {"sentAt": BATCH_SENT_AT}])
def test_what_changes_between_tries_does_not_change_whether_a_request_fits(shared: dict[str, Any]) -> None:
    event = {"messageId": "1", "event": "x" * 1_000, "type": "track"}
    limits = replace(LIMITS, request_bytes_max=10 * len(orjson.dumps(event)))
    for client_ip in (None, IP):
        arrival = Arrival("web", RECEIVED_MS, client_ip=client_ip)
        fits = identified(identifier(limits), Payload([event] * 10, None, shared), arrival)
        assert len(fits.events) == 10
        more = identified(identifier(limits), Payload([event] * 12, None, shared), arrival)
        assert [event.value for event in more.events] == [event.value for event in fits.events]
        assert told(more) == [(10, "1", "request_too_large"), (11, "1", "request_too_large")]
        assert b'"event":"x' in more.quarantined[0].value


def test_long_retry_fields_count_for_the_size() -> None:
    found = identify([{"messageId": "1", "_metadata": "x" * 3_100}])
    assert [code for _, _, code in told(found)] == ["event_too_large"]


def test_batch_level_sent_at_that_is_no_time_goes_into_no_event() -> None:
    event = only_event({"messageId": "1", "type": "track"}, shared={"sentAt": "x" * 101})
    assert "sentAt" not in orjson.loads(event.value)


def test_rejected_items_leave_the_room_of_a_request_to_the_others() -> None:
    good = {"messageId": "1", "event": "x" * 1_900}
    for bad in ("x" * 1_500, good | {"properties": "x" * 1_000}):
        found = identify([bad] * 70 + [good] * 50)
        assert len(found.rejections) == 70
        assert len(found.events) == 50


def test_merged_batch_is_bounded_as_a_whole() -> None:
    shared = {"context": {"page": "x" * 1_500}}
    items = [{"messageId": str(number)} for number in range(100)]
    found = identify(items, shared=shared)
    assert 60 < len(found.events) < 70
    assert {code for _, _, code in told(found)} == {"request_too_large"}
    assert len(identify(items[:50], shared=shared).events) == 50


def nested(levels: int) -> Any:
    """Return an object of so many levels, itself included."""
    inner: Any = {}
    for level in range(levels - 1):
        inner = {"a": inner} if level % 2 else {"a": inner, "b": [1]}
    return inner


@pytest.mark.parametrize(("levels", "is_kept"), [(6, True), (7, False)])
def test_depth_limit_counts_the_event_itself(levels: int, is_kept: bool) -> None:
    event = {"messageId": "1", "properties": nested(levels - 1), "brackets in strings": "[" * 50}
    assert bool(identify([event]).events) is is_kept


@pytest.mark.parametrize(("levels", "is_kept"), [(5, True), (6, False)])
def test_depth_of_batch_level_fields_counts(levels: int, is_kept: bool) -> None:
    found = identify([{"messageId": "1", "type": "x"}], shared={"context": nested(levels)})
    assert bool(found.events) is is_kept


@pytest.mark.parametrize("levels", [253, 254, 255, 256, 400, 1000])
@pytest.mark.parametrize("field", ["properties", "_metadata", "context"])
def test_event_too_deep_to_be_written_is_kept_whole(levels: int, field: str) -> None:
    text = b'{"messageId":"1","%s":' % field.encode() + b"[" * levels + b"]" * levels + b"}"
    found = identify([orjson.loads(text)])
    assert told(found) == [(0, "1", "event_too_deep")]
    stored = orjson.loads(found.quarantined[0].value)["event"]
    assert list(stored) == sorted(["messageId", field])


@pytest.mark.regression("A deep writeKey cost an event, depending on what else its batch said.")
@pytest.mark.parametrize("levels", [7, 253, 254, 255, 256, 400, 1000])
@pytest.mark.parametrize("field", ["writeKey", "receivedAt"])
@pytest.mark.parametrize("brackets", [0, 20])
def test_depth_of_what_no_record_keeps_does_not_count(levels: int, field: str, brackets: int) -> None:
    text = b'{"messageId":"1","%s":' % field.encode() + b"[" * levels + b"]" * levels + b"}"
    found = identify([orjson.loads(text) | {"properties": [{}] * brackets}])
    assert found.rejections == []
    assert orjson.loads(found.events[0].value).get(field) in (None, RECEIVED_AT)


def test_deep_batch_level_fields_do_not_crash() -> None:
    context: Any = []
    for _ in range(600):
        context = [context]
    found = identify([{"messageId": "1"}, 5], shared={"context": {"deep": context}, "sentAt": context})
    assert [code for _, _, code in told(found)] == ["event_too_deep", "not_an_object"]


@pytest.mark.parametrize("levels", [1, 199, 200, 201, 254, 255, 256, 257, 400, 401, 1000])
def test_json_of_any_depth_is_written(levels: int) -> None:
    text = b'{"b":[1,' * (levels // 2) + b"[[]]" + b'],"a":{}}' * (levels // 2)
    document = orjson.loads(text)
    assert is_deeper(document, levels)
    assert not is_deeper(document, levels + 3)
    assert sorted(dumps_any(document)) == sorted(text)


@pytest.mark.regression("Small events that waited kept 4 KB each and were counted as their size.")
@pytest.mark.parametrize("item", [{"messageId": "1"}, {"messageId": "1", "type": "x"}, 5], ids=repr)
def test_values_that_wait_take_no_more_memory_than_is_counted(item: object) -> None:
    tracemalloc.start()
    try:
        found = identify([item] * 500)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < found.size_bytes + 500 * 1_000  # what else an event consists of


OVERFLOWING = """
import orjson
from app.ingest.deep_json import dumps_any

for levels in (255, 1000):
    for size in range(0, 5_000, 25):
        text = b'{"a":' * levels + b'"' + b"x" * size + b'"' + b"}" * levels
        assert dumps_any(orjson.loads(text)) == text
"""
"""Documents of all sizes, some of which end just where the writer's buffer does."""


@pytest.mark.regression("An event nested more than 254 deep and of a certain length ended the process.")
def test_brackets_of_a_deep_document_end_within_the_writer_s_buffer() -> None:
    checked = os.environ | {"PYTHONMALLOC": "debug"}  # the interpreter ends where anything was written behind
    subprocess.run([sys.executable, "-c", OVERFLOWING], env=checked, check=True)


# ---- bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"{",
        b"[1,]",
        b"\xef\xbb{}",
        b"\xef\xbb\xbf",
        b"nan",
        "{}".encode("utf-16"),
        b"[" * 2000,
    ],
)
def test_body_that_is_not_json_is_refused(body: bytes) -> None:
    for parse in (parse_batch, parse_events):
        with pytest.raises(InvalidJSONError):
            parsed(parse, body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "it is empty"),
        (b" \n ", "it is empty"),
        (b'{"batch":[\n{"event":"secret",}]}', "line 2, column 18: trailing comma is not allowed"),
        (b'{"batch":[{"event":"secret"}', "line 1, column 29: unexpected end of data"),
        (b'["\\ud83d",\nx]', "line 2, column 1: unexpected character, expected a JSON value"),
        (b'["secret","\xff"]', "byte 12 is no UTF-8"),
        ("{}".encode("utf-16-le"), "line 1, column 2: "),
        (b"\xef\xbb\xbf{,", "line 1, column 2: "),
    ],
)
def test_body_that_is_not_json_is_told_where_and_why_without_a_word_of_it(body: bytes, told: str) -> None:
    with pytest.raises(InvalidJSONError) as caught:
        parsed(parse_events, body)
    assert caught.value.detail.startswith(told)
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize(
    ("parse", "body", "told"),
    [
        (parse_batch, b'{"userId":"1"}', "an object without batch, and no event"),
        (parse_batch, b'{"batch":{}}', "whose batch is no array"),
        (parse_batch, b'"[[]"', "neither an object nor an array"),
        (parse_event, b'"text"', "neither an object nor an array"),
        (parse_events, b"5", "neither an object nor an array"),
    ],
)
def test_body_without_events_is_told_what_it_is(parse: Parse, body: bytes, told: str) -> None:
    with pytest.raises(BatchMissingError) as caught:
        parsed(parse, body)
    assert told in caught.value.detail


def test_half_of_a_surrogate_pair_costs_no_batch() -> None:
    payload = parsed(parse_batch, b'{"batch":[{"messageId":"1","text":"a\\ud83d"},{"messageId":"2"}]}')
    assert payload.items == [{"messageId": "1", "text": "a\ufffd"}, {"messageId": "2"}]


@pytest.mark.parametrize("body", [b"5", b'"x"', b"null", b"true"])
def test_body_without_events_is_refused(body: bytes) -> None:
    for parse in (parse_batch, parse_events):
        with pytest.raises(BatchMissingError):
            parsed(parse, body)


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"batch":null}', b'{"batch":{}}', b'{"sentAt":"now"}', b'{"batch":null,"messageId":"go"}'],
)
def test_batch_path_needs_a_batch(body: bytes) -> None:
    with pytest.raises(BatchMissingError):
        parsed(parse_batch, body)


def test_forms_of_the_native_path() -> None:
    event, batch = {"messageId": "1", "context": {}}, {"batch": [1, 2], "context": {"a": 1}}
    assert parsed(parse_events, orjson.dumps(event))[:3] == ([event], event, {})
    assert parsed(parse_events, orjson.dumps([event, 5]))[:3] == ([event, 5], None, {})
    assert (
        parsed(parse_events, orjson.dumps(batch))[:3]
        == ([1, 2], batch, batch)
        == parsed(parse_batch, orjson.dumps(batch))[:3]
    )
    assert parsed(parse_events, b"[]").items == []
    odd = {"batch": "not a list", "messageId": "1"}
    assert parsed(parse_events, orjson.dumps(odd))[:3] == ([odd], odd, {})


def test_events_beyond_the_limit_are_fragments() -> None:
    for parse, body in (
        (parse_events, b"[%b]"),
        (parse_events, b'{"batch":[%b]}'),
        (parse_batch, b'{"batch":[%b]}'),
    ):
        assert len(parsed(parse, body % b",".join([b"1"] * 100)).items) == 100
        raw = body % b", ".join([b"1"] * 102)
        *items, rest = parsed(parse, raw).items
        assert items == [1] * 100
        assert rest == Fragment(raw.index(b"1" + b", 1" * 99) + 299, b"[1, 1]", "too_many_events")


# ---- the client's address

CONTEXTS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.just([]),
    st.just("text"),
    st.dictionaries(
        st.sampled_from(["ip", "page", "context", 'a"b', "\\"]),
        st.one_of(st.none(), st.text(max_size=5), st.just({"context": {"ip": "x"}}), st.just(IP)),
        max_size=4,
    ),
)
ODD_FIELDS: st.SearchStrategy[Any] = st.one_of(
    st.text(max_size=20),
    st.sampled_from([',"context":{', {"context": {"page": 1}}, [{"x": 1, "context": {"y": 2}}], "{["]),
)


@settings(max_examples=400, deadline=None)
@given(
    item=st.fixed_dictionaries(
        {"messageId": st.just("a")},
        optional={
            "context": CONTEXTS,
            "type": st.just("track"),
            "anonymousId": ODD_FIELDS,
            "traits": ODD_FIELDS,
        },
    ),
    shared=st.fixed_dictionaries({}, optional={"context": CONTEXTS, "sentAt": st.just(BATCH_SENT_AT)}),
)
def test_address_is_added_where_there_is_none_and_changes_nothing_else(
    item: dict[str, Any], shared: dict[str, Any]
) -> None:
    without = only_event(item, shared=shared)
    event = only_event(item, shared=shared, arrival=Arrival("web", RECEIVED_MS, client_ip=IP))
    expected = loads_strictly(without.value)
    context = expected.get("context")
    if context is None:
        expected["context"] = {"ip": IP}
    elif isinstance(context, dict) and context.get("ip") is None:
        shared_context = shared.get("context")
        told = isinstance(shared_context, dict) and shared_context.get("ip")
        assert not told or "ip" in (item.get("context") or {})
        context["ip"] = IP
    assert loads_strictly(event.value) == expected
    assert event._replace(value=b"") == without._replace(value=b"")


# ---- changed rules


@pytest.mark.regression("A changed GATEWAY_FINGERPRINT_IGNORE turned retries into conflicts.")
def test_event_has_the_fingerprints_of_the_rules_that_its_original_may_be_stored_under() -> None:
    def at(ignore: set[str], *earlier: set[str]) -> Event:
        by = Identifier(
            IDENTITY,
            PARTITIONS,
            QUARANTINE,
            LIMITS,
            fingerprint_ignore=frozenset(ignore),
            earlier_ignore=[frozenset(rule) for rule in earlier],
        )
        found = identified(by, Payload([item], None, {}), Arrival("web", RECEIVED_MS))
        (event,) = found.events
        return event

    item = {"messageId": "a", "type": "track", "attempt": 1}
    before, now = at(set()), at({"attempt"}, set())

    assert now.fingerprint == at({"attempt"}).fingerprint != before.fingerprint
    assert now.earlier_fingerprints == (before.fingerprint,)
    assert at(set(), {"attempt"}).earlier_fingerprints == (at({"attempt"}).fingerprint,)
    assert at({"other"}, set()).earlier_fingerprints == ()  # it has no such field


@given(
    st.recursive(
        st.integers(0, 9) | st.text(alphabet='a"\\[]{}\n', max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text('a"[\\', max_size=2), inner, max_size=3)
        ),
    ),
    st.integers(-1, 6),
)
def test_depth_of_json_is_that_of_its_document(document: Any, levels: int) -> None:
    assert is_deeper_json(orjson.dumps(document), levels) is is_deeper({"a": document}, levels + 1)


# ---- what a request may cost


@pytest.mark.parametrize("shared", [{"context": {"a": "x" * 6_000}}])
def test_batch_level_fields_may_not_multiply(shared: dict[str, Any]) -> None:
    limits = EventLimits(10_000, 6, request_bytes_max=10_000_000, growth_bytes_max=1_000_000)
    arrival = Arrival("web", RECEIVED_MS)
    found = identified(identifier(limits), Payload([{}] * 160, None, shared), arrival)
    assert 160 * 6_000 < found.size_bytes < 1_000_000 + 160 * 200

    more = identified(identifier(limits), Payload([{}] * 170, None, shared), arrival)
    assert told(more) == [(170, None, "batch_fields_too_large")]
    assert len(more.events) == 170
    assert more.size_bytes < 170 * 200 + 7_000
    assert all("context" not in orjson.loads(event.value) for event in more.events)
    assert more.quarantined[0].value.endswith(orjson.dumps(shared))
    assert more.indexes() == list(range(170))
    again = identified(identifier(limits), Payload([{}] * 180, None, shared), arrival)
    assert again.quarantined[0].key == more.quarantined[0].key


@pytest.mark.regression("A retry from another address was refused for its size.")
@pytest.mark.parametrize("size", [1_980, 1_981, 1_982])
def test_growth_is_judged_alike_wherever_and_whenever_a_request_is_sent(size: int) -> None:
    limits = EventLimits(10_000, 6, request_bytes_max=10_000_000, growth_bytes_max=200_000)
    context = {"a": "x" * size}

    def is_taken(client_ip: str | None, **more: object) -> bool:
        arrival = Arrival("web", RECEIVED_MS, client_ip=client_ip)
        payload = Payload([{}] * 100, None, {"context": context, **more})
        return not identified(identifier(limits), payload, arrival).rejections

    addresses = (None, "::1", "2001:db8:1111:2222:3333:4444:5555:6666")
    assert {is_taken(address) for address in addresses} == {is_taken(None, sentAt=BATCH_SENT_AT)}
    assert is_taken(None) == (100 * len(orjson.dumps({"context": context})) <= 200_000)


@pytest.mark.regression("An event beside a context larger than an event was refused, the context lost.")
@pytest.mark.parametrize("count", [1, 3])
def test_batch_level_fields_larger_than_an_event_are_kept_once(count: int) -> None:
    limits = EventLimits(10_000, 6, request_bytes_max=10_000_000)
    context = {"a": "x" * 10_000}
    items = [{"messageId": str(number), "type": "track"} for number in range(count)]
    found = identified(
        identifier(limits), Payload([*items], None, {"context": context}), Arrival("web", RECEIVED_MS)
    )
    assert len(found.events) == count
    assert told(found) == [(count, None, "batch_fields_too_large")]
    assert b"x" * 10_000 in b"".join(event.value for event in found.quarantined)


def test_event_of_one_of_several_batches_is_the_one_that_comes_alone() -> None:
    events = [{"messageId": str(number), "type": "track"} for number in range(3)]
    contexts = [{"context": {"a": 1}}, {"context": {"a": 2}}, {}]
    arrival = Arrival("web", RECEIVED_MS)
    found = identified(identifier(), Payload([*map(dict, events)], None, {}, contexts), arrival)
    alone = identify(events)
    assert [event.fingerprint for event in found.events] == [event.fingerprint for event in alone.events]
    values = [orjson.loads(event.value) for event in found.events]
    assert [value.get("context") for value in values] == [{"a": 1}, {"a": 2}, None]


def test_fields_of_several_batches_may_not_multiply() -> None:
    limits = EventLimits(10_000, 6, request_bytes_max=10_000_000, growth_bytes_max=100_000)
    batches = [{"context": {"a": "x" * 6_000, "b": number}, "sentAt": BATCH_SENT_AT} for number in range(3)]
    own = [fields for fields in batches for _ in range(10)]
    found = identified(
        identifier(limits), Payload([{} for _ in own], None, {}, own), Arrival("web", RECEIVED_MS)
    )
    values = [orjson.loads(event.value) for event in found.events]
    assert ["context" in value for value in values] == [True] * 16 + [False] * 14
    assert all(value["sentAt"] == BATCH_SENT_AT for value in values)
    assert told(found) == [(30, None, "batch_fields_too_large")]
    left_out = [{"context": fields["context"]} for fields in batches[1:]]
    assert found.quarantined[0].value.endswith(orjson.dumps(left_out, option=orjson.OPT_SORT_KEYS))


def test_packed_event_is_identified_as_if_it_had_been_parsed() -> None:
    good, bad = {"messageId": "1", "event": "a"}, {"messageId": "1", "event": "x" * 3_000, "writeKey": "k"}
    plain = identify([good, bad, [good]])
    packed = identify([Packed(orjson.dumps(item), "k", is_event=True) for item in (good, bad, [good])])
    assert packed.events == plain.events
    assert packed.rejections == plain.rejections


def test_usual_batch_level_fields_pass() -> None:
    limits = EventLimits(800 * 1024, 32, request_bytes_max=16 * 1024**2)
    shared = {"context": {"a": "x" * 9_900}, "integrations": {"All": True}, "sentAt": BATCH_SENT_AT}
    found = identified(identifier(limits), Payload([{}] * 500, None, shared), Arrival("web", RECEIVED_MS))
    assert len(found.events) == 500


@pytest.mark.parametrize("item", [{"messageId": "1"}, 5, {"messageId": "1", "p": "x" * 40_000}])
def test_large_batch_is_identified_in_short_steps(item: object) -> None:
    limits = EventLimits(800 * 1024, 32, request_bytes_max=200 * 1024**2)
    found = Identified()
    done = [0]
    items = identifier(limits).identify(Payload([item] * 2_500, None, {}), Arrival("web", 1))
    while found.take(items, STEP_BYTES):
        done.append(len(found.events) + len(found.rejections))
    assert len(found.events) + len(found.rejections) == 2_500
    most = max(after - before for before, after in pairwise(done))
    assert most <= 250
    assert most * 40_000 * (type(item) is dict and "p" in item) <= 2 * STEP_BYTES


def test_item_that_is_too_large_as_sent_is_rejected_unparsed() -> None:
    items = [
        {"messageId": "0"},
        Oversize("1", b'{"messageId":"1"}'),
        Oversize(7, b"[1]"),
        Oversize(None, b"{}"),
    ]
    found = identify(items)
    assert told(found) == [
        (1, "1", "event_too_large"),
        (2, "7", "event_too_large"),
        (3, None, "event_too_large"),
    ]
    head, content = found.quarantined[0].value.split(b"\n")  # it may be no JSON, so it is no part of some
    assert (orjson.loads(head)["json"], content) == (False, b'{"messageId":"1"}')
    assert found.indexes() == [0]
