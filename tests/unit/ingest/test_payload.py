"""
Claim: what is plainly a batch, an array of events or one event is taken as such on every path, one level of
wrapping is undone, deeper ones are left alone, and no field named batch makes an event a batch.
"""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from app.http.errors import BatchMissingError
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.items import Fragment, Oversize
from app.ingest.large_json import AT_ONCE_BYTES, MARKS_AT_ONCE, SMALL_BYTES, JSONLimits
from app.ingest.parse import Parse, parse_batch, parse_event, parse_events
from app.ingest.payload import Payload
from tests.support.pieces import Turn, least_pieces_of
from tests.unit.ingest.test_identify import identifier

PARSES = (parse_batch, parse_events, parse_event)
ONE = {"messageId": "1", "type": "track", "event": "Seen"}
TWO = {"messageId": "2", "type": "page"}
UNNAMED = {"type": "track", "userId": "u"}
ODD: list[object] = [5, None, "text", "{", '{"a":1}', "[1]", [], [5], [{}], [[ONE]], {}]
"""Items that are no events, and wrap none that one level would bring out."""

LIMITS = JSONLimits(events_max=2_500, event_bytes_max=800 * 1024)


def text(document: object) -> str:
    return orjson.dumps(document).decode()


def parsed(parse: Parse, document: object, limits: JSONLimits = LIMITS) -> Payload:
    async def turn(_size_bytes: int) -> None:
        pass

    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return asyncio.run(parse(body, limits, turn))


# ---- on every path

BATCH = {"batch": [ONE, TWO], "context": {"a": 1}, "messageId": "go-batch"}


@pytest.mark.parametrize("parse", PARSES)
@pytest.mark.parametrize(
    ("body", "items"),
    [
        (BATCH, [ONE, TWO]),
        ([ONE, TWO], [ONE, TWO]),
        (ONE, [ONE]),
        (UNNAMED, [UNNAMED]),
        ([ONE, *ODD, TWO], [ONE, *ODD, TWO]),
        ({"batch": [ONE, *ODD, TWO]}, [ONE, *ODD, TWO]),
        ({"batch": [{"userId": "u"}], "sentAt": "now"}, [{"userId": "u"}]),
        ({"batch": []}, []),
        ([], []),
        # wrapped once
        (text(BATCH), [ONE, TWO]),
        (text([ONE, TWO]), [ONE, TWO]),
        (text(ONE), [ONE]),
        (text([]), []),
        ("\ufeff \n" + text([ONE, TWO]), [ONE, TWO]),
        ({"batch": text([ONE, TWO])}, [ONE, TWO]),
        ({"batch": " " + text([ONE, 5])}, [ONE, 5]),
        ({"batch": [[ONE, TWO]]}, [ONE, TWO]),
        ({"batch": [[ONE], [TWO]]}, [ONE, TWO]),
        ({"batch": [ONE, [TWO], 5]}, [ONE, TWO, 5]),
        ({"batch": [[ONE, 5], []]}, [ONE, 5, []]),
        ({"batch": [text(ONE), text(TWO)]}, [ONE, TWO]),
        ({"batch": [text(ONE), TWO, "text"]}, [ONE, TWO, "text"]),
        ([[ONE, TWO]], [ONE, TWO]),
        ([text(ONE), "\ufeff" + text(TWO)], [ONE, TWO]),
        ([BATCH | {"messageId": None}], [BATCH | {"messageId": None}]),
        ([{"batch": [ONE, TWO]}], [ONE, TWO]),
        ({"batch": [{"batch": [ONE, TWO]}]}, [ONE, TWO]),
        ({"batch": {"batch": [ONE, TWO]}}, [ONE, TWO]),
    ],
)
def test_plain_forms_and_one_level_of_wrapping(parse: Parse, body: object, items: list[object]) -> None:
    assert parsed(parse, body).items == items


@pytest.mark.parametrize("parse", PARSES)
@pytest.mark.parametrize(
    ("body", "items"),
    [
        ({"batch": [[[ONE]]]}, [[[ONE]]]),
        ({"batch": [[text(ONE)], ONE]}, [[text(ONE)], ONE]),
        ({"batch": [text([ONE]), ONE]}, [text([ONE]), ONE]),
        ({"batch": [text(text(ONE)), ONE]}, [text(text(ONE)), ONE]),
        (text({"batch": [[ONE], TWO]}), [[ONE], TWO]),
        (text([text(ONE), TWO]), [text(ONE), TWO]),
        ({"batch": text([text(ONE), TWO])}, [text(ONE), TWO]),
    ],
)
def test_deeper_wrapping_is_left_alone(parse: Parse, body: object, items: list[object]) -> None:
    if parse is parse_event and not any(item in (ONE, TWO) for item in items):
        items = [body]
    assert parsed(parse, body).items == items


@pytest.mark.parametrize("parse", PARSES)
@pytest.mark.parametrize("body", [text(text([ONE])), text("text"), text(5), "text", "{", "[" + text(ONE), ""])
def test_text_that_holds_no_json_or_text_again_is_refused(parse: Parse, body: str) -> None:
    with pytest.raises(BatchMissingError):
        parsed(parse, body)


# ---- a batch, or an event with a field of that name


@pytest.mark.parametrize("parse", [parse_events, parse_event])
@pytest.mark.parametrize(
    "batch", [[ONE], [{}], [], [[ONE]], [text(ONE)], text([ONE]), text(ONE), {"batch": [ONE]}, 5, "text"]
)
def test_object_with_an_event_name_is_an_event_whatever_its_batch(parse: Parse, batch: object) -> None:
    event = {"event": "Baked", "batch": batch}
    assert parsed(parse, event)[:3] == ([event], event, {})


@pytest.mark.regression("An event with a field batch of very many items was answered 503 for ever.")
@pytest.mark.parametrize("parse", [parse_events, parse_event])
@pytest.mark.parametrize("item", [7, {"a": [1]}, "text"])
def test_event_keeps_a_field_batch_of_any_length(parse: Parse, item: object) -> None:
    event = ONE | {"batch": [item] * 40}
    payload = parsed(parse, event, replace(LIMITS, events_max=3))
    assert payload.items == [event]
    found = Identified()
    found.take(identifier().identify(payload, Arrival("web", 1)))
    assert orjson.loads(found.events[0].value)["batch"] == event["batch"]


@pytest.mark.parametrize("batch", [[], [5], ["text"], [{"id": 1}], text([1]), text({}), "text", {}, None])
def test_path_of_one_event_keeps_an_event_with_a_type(batch: object) -> None:
    event = {"type": "identify", "userId": "u", "batch": batch}
    assert parsed(parse_event, event)[:3] == ([event], event, {})


def test_name_that_is_null_is_none() -> None:
    for parse in PARSES:
        assert parsed(parse, {"event": None, "batch": [ONE]}).items == [ONE]


def test_path_for_batches_takes_every_array_of_that_name() -> None:
    for batch in ([ONE], [5], []):
        assert parsed(parse_batch, {"event": "Baked", "batch": batch}).items == batch


@pytest.mark.parametrize("batch", [None, {}, 5, "text", "[1", {"batch": []}, {"batch": [5]}, text(ONE)])
def test_path_for_batches_refuses_what_may_be_the_rest_of_one(batch: object) -> None:
    with pytest.raises(BatchMissingError):
        parsed(parse_batch, {"messageId": "go-batch", "batch": batch})


# ---- what surrounds the items


@pytest.mark.parametrize("parse", PARSES)
@pytest.mark.parametrize(
    "body",
    [
        BATCH,
        text(BATCH),
        BATCH | {"batch": text([ONE, TWO])},
        BATCH | {"batch": [[ONE, TWO]]},
        BATCH | {"batch": [text(ONE), text(TWO)]},
        {"messageId": "go-batch", "context": {"a": 0}, "batch": [{"batch": [ONE, TWO], "context": {"a": 1}}]},
        {"messageId": "go-batch", "batch": {"batch": [ONE, TWO], "context": {"a": 1}}},
    ],
)
def test_batch_level_fields_are_kept(parse: Parse, body: object) -> None:
    payload = parsed(parse, body)
    assert payload[:3] == ([ONE, TWO], payload.shared, BATCH | {"batch": payload.shared["batch"]})


@pytest.mark.parametrize("parse", PARSES)
def test_array_and_single_event_have_no_batch_level(parse: Parse) -> None:
    for body in (ONE, text(ONE)):
        assert parsed(parse, body)[:3] == ([ONE], ONE, {})
    for array in ([ONE], text([ONE]), [text(ONE)], [[ONE]]):
        assert parsed(parse, array)[:3] == ([ONE], None, {})


@pytest.mark.parametrize("parse", PARSES)
def test_unwrapped_event_is_identified_as_if_sent_plainly(parse: Parse) -> None:
    by: Identifier = identifier()
    arrival = Arrival("web", 1_795_291_872_007, idempotency_key=b"key")

    def found(body: object) -> Any:
        identified = Identified()
        identified.take(by.identify(parsed(parse, body), arrival))
        return identified

    events = [ONE, UNNAMED, {"type": "track", "n": 1.0, "text": '\U0001f600\u00e9\\"'}]
    plain = found({"batch": events})
    for wrapped in (
        events,
        text({"batch": events}),
        {"batch": text(events)},
        {"batch": [events]},
        {"batch": list(map(text, events))},
        [{"batch": events}],
    ):
        assert found(wrapped) == plain


# ---- bounds


@pytest.mark.parametrize("parse", PARSES)
def test_items_are_counted_once_unwrapped_and_those_beyond_the_limit_are_fragments(parse: Parse) -> None:
    for many in ([[ONE] * 1_300] * 2, [text(ONE)] * 2_501, text([ONE] * 2_501), [[ONE] * 2_501]):
        document = {"batch": many} if parse is parse_batch else {"batch": many, "sentAt": "now"}
        items = parsed(parse, document).items
        assert list(items[:2_500]) == [ONE] * 2_500
        rest = items[2_500:]
        assert all(isinstance(item, Fragment) and item.reason == "too_many_events" for item in rest)
        beyond = [event for item in rest for event in orjson.loads(item.content)]  # type: ignore[attr-defined]
        count = 2_600 if len(many) == 2 else 2_501
        assert beyond in ([ONE] * (count - 2_500), [text(ONE)])
    assert len(parsed(parse, {"batch": [[ONE] * 1_250] * 2}).items) == 2_500


@pytest.mark.parametrize("parse", PARSES)
@pytest.mark.parametrize("size", [300, 2_400])
def test_large_bodies_are_unwrapped_as_small_ones(parse: Parse, size: int) -> None:
    events = [ONE | {"messageId": str(n), "path": [[1, 2], {"a": "]}"}], "t": "é" * 100} for n in range(size)]
    for body in (
        events,
        {"batch": events, "sentAt": "now"},
        {"batch": [events[:100], events[100:]], "sentAt": "now"},
        {"batch": list(map(text, events)), "sentAt": "now"},
        {"batch": text(events), "sentAt": "now"},
        text({"batch": events, "sentAt": "now"}),
        [{"batch": events}],
    ):
        assert len(orjson.dumps(body)) > (SMALL_BYTES if size > 300 else 0)
        assert list(parsed(parse, body).items) == events


def test_event_too_large_for_its_batch_to_be_read_is_set_aside_whole() -> None:
    event = {"messageId": "1", "event": "Baked", "batch": [{"a": "x" * 1_000_000}] * 3}
    body = orjson.dumps(event)
    assert len(body) > AT_ONCE_BYTES
    for parse in (parse_events, parse_event):
        assert parsed(parse, body).items == [Oversize("1", body)]
    assert parsed(parse_batch, orjson.dumps(ONE | {"a": "x" * AT_ONCE_BYTES})).items[0].message_id == "1"  # type: ignore[attr-defined]


def test_document_in_a_text_is_bounded_and_charged_as_any() -> None:
    held: list[tuple[int, int]] = []
    limits = JSONLimits(2_500, 800 * 1024, hold=lambda size, more: held.append((size, more)))
    inner = text([ONE | {"a": "x" * 1_000}] * 300)
    body = orjson.dumps(inner)
    assert len(parsed(parse_batch, body, limits).items) == 300
    assert held[0] == (len(body), len(body))
    assert held[1][0] == 2 * len(inner)
    many = [ONE] * (MARKS_AT_ONCE + 1)
    for document in (text(many), {"batch": text(many[:25_000])}):
        assert len(orjson.dumps(document)) < AT_ONCE_BYTES or type(document) is str
        kinds = [type(item) for item in parsed(parse_batch, document, limits).items]
        assert kinds[2_499:2_501] == [dict, Fragment]


@pytest.mark.parametrize(
    "body",
    [
        b'{"batch":[%b]}' % b",".join([b'"{"'] * 2_500),
        b'{"batch":[%b]}' % b",".join([b'"{NaN,\\\\ud83d"'] * 2_500),
        b'{"batch":[%b]}' % b",".join([b"[%b]" % b",".join([b"1"] * 1_600)] * 2_000),
        b'{"batch":[%b]}' % b",".join([b"1"] * 400_000),
    ],
    ids=["texts", "broken texts", "lists", "numbers"],
)
def test_looking_for_events_takes_its_turns(body: bytes) -> None:
    async def parse_twice(turn: Turn) -> None:
        for parse in (parse_batch, parse_event):
            await parse(body, JSONLimits(500_000, 800 * 1024), turn)
            await turn(0)

    assert max(least_pieces_of(parse_twice, 0.1)) < 0.1


@pytest.mark.regression("A replay of several batches gave events the fields of another batch.")
@pytest.mark.parametrize("parse", PARSES)
def test_events_of_several_batches_have_the_fields_of_their_own_and_stay_as_sent(parse: Parse) -> None:
    first = {"batch": [ONE], "context": {"app": 1}, "integrations": {"a": True}, "writeKey": "k"}
    second = {"batch": [TWO, 5], "context": {"app": 2}, "integrations": {"a": True}, "writeKey": "k"}
    for body in ([first, second], {"batch": [first, second], "sentAt": "now"}):
        payload = parsed(parse, body)
        assert payload.items == [ONE | {"writeKey": "k"}, TWO | {"writeKey": "k"}, 5]
        assert "context" not in payload.shared
        assert [fields["context"]["app"] for fields in payload.own_fields] == [1, 2, 2]
        assert all(fields["integrations"] == {"a": True} for fields in payload.own_fields)
    same = parsed(parse, [first, first | {"batch": [TWO]}])
    assert (same.items, same.shared["context"], same.own_fields) == ([ONE, TWO], {"app": 1}, ())
