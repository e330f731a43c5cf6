"""
Claim: of a damaged body each undamaged event is found once, nothing is found that was not sent, the rest is
kept as it is, and the work is linear in the body's bytes.
"""

import asyncio
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.ingest.broken_json import PIECES_MAX, BrokenJSON
from app.ingest.items import Fragment
from app.ingest.large_json import JSONLimits
from app.ingest.payload import Payload
from app.ingest.salvage import Layout
from app.ingest.salvaged import salvaged
from dedupe.decide.rejection import RejectionCode

LIMITS = JSONLimits(events_max=2_500, event_bytes_max=800 * 1024)
ONE, TWO = b'{"type":"track","messageId":"1"}', b'{"type":"page","messageId":"2"}'
DAMAGES = b"X{}[],:\\\0 \xff1"


def found_in(body: bytes, limits: JSONLimits = LIMITS, *, reads_sessions: bool = False) -> Payload:
    async def turn(_size_bytes: int) -> None:
        pass

    return asyncio.run(salvaged(body, limits, turn, reads_sessions=reads_sessions))


def events_in(body: bytes) -> list[Any]:
    return [item for item in found_in(body).items if isinstance(item, dict)]


def fragments_in(body: bytes) -> list[tuple[int, bytes]]:
    return [(item.position, item.content) for item in found_in(body).items if isinstance(item, Fragment)]


# ---- members of each kind


@pytest.mark.parametrize(
    "body",
    [
        b'{"batch":[%b%b]}',
        b'{"batch":[\n,%b\n,%b],"sentAt":"now"}',
        b'{"batch":[,,%b,,%b,,]}',
        b'{"batch":[%b\r\n%b]}',
        b'{"batch":[%b,%b]}\0\0\0\0',
        b'\0\0{"batch":[%b,%b]}',
        b'{"batch":[%b\0\0,%b]}',
        b'{"batch":[%b]}{"batch":[%b]}',
        b'{"batch":[%b],"sentAt":"now"}\n{"batch":[%b],"sentAt":"now"}',
        b"[%b][%b]",
        b'{"batch":[%b,{"batch":[%b]}',
        b',%b,%b],"sentAt":"now"}',
        b'%b,%b],"sentAt":"now"}',
        b'"sentAt":"now","batch":[%b,%b]}',
        b"%b\n%b\n",
        b"%b%b",
        b'{"batch":[%b,%b',
        b'{"batch":[%b,%b],"sentAt":"20',
        b'\xef\xbb\xbf{"batch":[%b,%b,]}',
        b"[%b,%b",
        b'{"batch":[[%b,%b]',
    ],
)
def test_events_are_found_and_what_surrounds_them_is_dropped(body: bytes) -> None:
    body %= (ONE, TWO)
    assert [event["messageId"] for event in events_in(body)] == ["1", "2"]
    assert not fragments_in(body)


@pytest.mark.parametrize(
    "body", [b"", b" ", b"\0\0", b'{"batch":[, , ]}', b'{"batch":[', b"[,]", b',],"sentAt":"x"}']
)
def test_nothing_is_found_in_nothing(body: bytes) -> None:
    assert not found_in(body).items


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        (b'{"writeKey":"k","batch":[%b,{"type":"tra', b'{"type":"tra'),
        (b'{"batch":[{"type":"identify","traits":{"a":[{"type":"x"},{"type":"y"}]},,%b]}', None),
        (
            b'{"batch":[{"type":"a","context":{"app":{"name":"x",%b]}',
            b'{"type":"a","context":{"app":{"name":"x"',
        ),
        (b'{"batch":[{"type":"a","list":[{"type":"x"},{"type":"y"}],"b":tru},%b]}', None),
        (b'ack","list":[{"type":"x"}]},%b],"sentAt":"x"}', b'ack","list":[{"type":"x"}]}'),
        (b'{"batch":[%b,5,"text",,{"userId":"u"}]}', b'5,"text",,{"userId":"u"}'),
        (b'{"batch":[%b]}garbage', b"}garbage"),
    ],
)
def test_torn_event_is_kept_whole_and_nothing_within_it_is_an_event(
    body: bytes, fragment: bytes | None
) -> None:
    body %= ONE
    assert [orjson.dumps(event) for event in events_in(body)] == [ONE]
    ((position, content),) = fragments_in(body)
    assert body[position : position + len(content)] == content
    assert fragment is None or content == fragment


@pytest.mark.parametrize(
    "body", [b"hello", b'"text"', b"5", b'{"foo":1}', b"\x1f\x8b\xff\xfe", b"{'type':'x'}"]
)
def test_body_without_an_event_is_one_fragment(body: bytes) -> None:
    assert found_in(body).items == [Fragment(0, body, RejectionCode.UNREADABLE)]


def test_text_that_looks_like_events_is_none() -> None:
    text = orjson.dumps('},{"type":"track","messageId":"fake"},{"')
    for torn in (b'{"type":"x","a":%b,"b":"', b'{"type":"x","a":"lost,"b":%b}', b'{"type":"x,"b":%b}'):
        body = b'{"batch":[%b,%b,%b]}' % (ONE, torn % text, TWO)
        assert [event["messageId"] for event in events_in(body)] == ["1", "2"], torn


# ---- fields of envelopes


def test_fields_of_the_envelope_are_read_wherever_they_stand() -> None:
    for body in (
        b'{"context":{"a":{"b":1}},"writeKey":"k","batch":[%b,,]}',
        b'{"batch":[%b,,],"writeKey":"k","context":{"a":{"b":1}}}',
        b'%b],"writeKey":"k","context":{"a":{"b":1}}}',
        b'{"batch":[%b,{"type":"x","context":{"torn":1},"a":tru}],"writeKey":"k","context":{"a":{"b":1}}}',
        b'{"batch":[{"type":"x","p":{"context":{"torn":1}},%b],"writeKey":"k","context":{"a":{"b":1}}}',
    ):
        payload = found_in(body % ONE)
        assert payload.shared == payload.top == {"writeKey": "k", "context": {"a": {"b": 1}}}, body


def test_events_of_two_envelopes_have_the_fields_of_their_own_and_stay_as_sent() -> None:
    payload = found_in(
        b'{"batch":[%b],"sentAt":"a","context":{"c":1}}{"batch":[%b],"sentAt":"b","context":{"c":1}}'
        % (ONE, TWO)
    )
    assert payload.items == [orjson.loads(ONE), orjson.loads(TWO)]
    assert payload.shared == {"context": {"c": 1}}
    assert [fields["sentAt"] for fields in payload.own_fields] == ["a", "b"]
    assert all(fields["context"] == {"c": 1} for fields in payload.own_fields)


def test_events_of_two_envelopes_have_the_write_key_of_their_own() -> None:
    first, second = events_in(b'{"batch":[%b],"writeKey":"a"}{"batch":[%b],"writeKey":"b"}' % (ONE, TWO))
    assert (first["writeKey"], second["writeKey"]) == ("a", "b")


def test_write_key_is_found_where_it_is_readable() -> None:
    assert found_in(b'{"batch":[{"type":"x","writeKey":"k",}]}').shared == {"writeKey": "k"}
    assert found_in(rb'{"batch":[{"type":"x","writeKey":"\u006b",}]}').shared == {"writeKey": "k"}
    assert "writeKey" not in found_in(b'{"batch":[{"type":"x","writeKey":"k"},]}').shared  # the event has it
    set_aside = found_in(
        b'{"client":"c,"batch":[{"type":"x","writeKey":"k","sequence":1}]}', reads_sessions=True
    )
    assert [type(item) for item in set_aside.items] == [Fragment, Fragment]
    assert set_aside.shared == {"writeKey": "k"}


SESSION = "2VBtYhpyPD4b5UjT1kXsVqQ1aBC"


@pytest.mark.parametrize(
    "lost",
    [
        (b'"session":', b'"session:'),
        (b'"client":', b'"clie\xfft":'),
        (b'"client":"c"', b'"client":"c'),
        (b'"client":"c"', b'"client":"\xff"'),
        (SESSION.encode(), SESSION.encode()[1:]),
        (b'"epoch":1', b'"epoch":-1'),
        (b'"epoch":1', b'"epoch":0'),
        (b'{"client":"c",', b""),
        (b'{"client":"c","session":"%b","epoch":1,' % SESSION.encode(), b""),
    ],
)
def test_events_of_a_session_that_is_not_known_are_set_aside(lost: tuple[bytes, bytes]) -> None:
    one = ONE[:-1] + b',"sequence":7}'
    body = b'{"client":"c","session":"%b","epoch":1,"batch":[%b,,],"n":}' % (SESSION.encode(), one)
    known = found_in(body, reads_sessions=True)
    assert known.shared == {"client": "c", "session": SESSION, "epoch": 1}
    assert orjson.loads(one) in known.items
    damaged = body.replace(*lost)
    payload = found_in(damaged, reads_sessions=True)
    assert Fragment(damaged.index(one), one, RejectionCode.UNREADABLE) in payload.items
    assert not any(isinstance(item, dict) for item in payload.items)
    assert not {"client", "session"} & payload.shared.keys()


@pytest.mark.parametrize(
    "field", [b'"firstSequence":1', b'"acknowledgedThrough":4', b'"session":"%b' % SESSION.encode()]
)
def test_what_is_left_of_a_session_tells_that_there_was_one(field: bytes) -> None:
    body = b'%b,"batch":[%b,%b,,]}' % (field, ONE, TWO)
    assert events_in(body) == [orjson.loads(ONE), orjson.loads(TWO)]
    assert not any(isinstance(item, dict) for item in found_in(body, reads_sessions=True).items)


def test_session_is_none_by_the_fields_of_events() -> None:
    one = b'{"type":"x","messageId":"1","client":"c","properties":{"session":"%b"}}' % SESSION.encode()
    body = b'{"batch":[%b,,{"type":"x","client":"c]}' % one
    assert orjson.loads(one) in found_in(body, reads_sessions=True).items
    assert "firstSequence" not in found_in(b'{"firstSequence":1,"batch":[%b,,]}' % ONE).shared


# ---- bytes that are no UTF-8


def test_byte_that_is_no_utf8_is_mended_in_its_event_alone() -> None:
    body = b'{"batch":[{"type":"a","messageId":"1","n":"M\xfcller","\xc3\xa9":"\xc3\xa9"},%b]}' % TWO
    mended, other = events_in(body)
    assert mended == {"type": "a", "messageId": "1", "n": "M\ufffdller", "é": "é"}
    assert orjson.dumps(other) == TWO


@pytest.mark.parametrize(
    "torn",
    [
        b'{"type":"a","messageId":"\xff"}',
        b'{"type":"a","messageId":"\xef\xbf\xbd\xff"}',
        b'{"type":"a","messageId":"1","writeKey":"\xff"}',
        b'{"type":"a","messageI\xff":"1"}',
        b'{"type":"a","messageId":"1","client":"\xff"}',
    ],
)
def test_byte_that_is_no_utf8_in_an_identity_sets_its_event_aside(torn: bytes) -> None:
    items = found_in(b'{"batch":[%b,%b]}' % (torn, TWO)).items
    assert items == [Fragment(10, torn, RejectionCode.UNREADABLE), orjson.loads(TWO)]


def test_replacement_character_that_was_sent_is_no_mending() -> None:
    (event,) = events_in(b'{"type":"a","messageId":"\xef\xbf\xbd","n":"\xff"}')
    assert event == {"type": "a", "messageId": "\ufffd", "n": "\ufffd"}


# ---- any damage


def sample(number: int) -> dict[str, Any]:
    return {
        "type": "track",
        "messageId": f"m{number}",
        "properties": {
            "text": f'{{"type":"track","messageId":"fake{number}"}} and }},{{"type":"x',
            "products": [{"type": "p", "messageId": f"p{number}"}, {"type": "q"}, [1, [2]]],
            "empty": {},
        },
        "context": {"ids": [{"id": "1", "type": "email"}], "app": {"name": "a\\b"}},
        "userId": "u é",
    }


SAMPLES = [sample(0), sample(1), sample(2)]
BODIES = [
    orjson.dumps({"batch": SAMPLES, "sentAt": "2026", "context": {"x": [1]}}),
    orjson.dumps({"sentAt": "2026", "context": {"x": {"y": 1}}, "batch": SAMPLES}),
    orjson.dumps(SAMPLES),
]


def layout_of(body: bytes) -> list[tuple[int, int]]:
    broken = BrokenJSON(body)
    list(broken.read())
    layout = Layout(body, broken)
    list(layout.decide())
    return layout.items


def check(body: bytes, damaged: bytes, touched: set[int], sent: list[dict[str, Any]]) -> None:
    """Check that untouched events are found once, and others only as long as they were sent."""
    found = []
    for start, end in layout_of(damaged):
        try:
            event = orjson.loads(damaged[start:end])
        except ValueError:
            continue
        if isinstance(event, dict) and {"type", "event", "messageId"} & event.keys():
            found.append(event)
    for number, event in enumerate(sent):
        if number not in touched:
            assert found.count(event) == 1, (damaged, number)
            found.remove(event)
    lengths = [len(orjson.dumps(sent[number])) for number in touched]
    for event in found:
        assert any(abs(len(orjson.dumps(event)) - length) <= 12 for length in lengths), (damaged, event)


@pytest.mark.parametrize("body", BODIES, ids=["batch first", "batch last", "array"])
def test_one_damaged_byte_harms_no_other_event(body: bytes) -> None:
    places = layout_of(body)
    assert len(places) == len(SAMPLES)
    for place in range(len(body)):
        for byte in (DAMAGES[place % len(DAMAGES)], ord('"'), body[place - 1]):
            mark = bytes([byte])
            inside = {number for number, (start, end) in enumerate(places) if start <= place < end}
            within = {number for number, (start, end) in enumerate(places) if start < place < end}
            for damaged, touched in (
                (body[:place] + mark + body[place + 1 :], inside),
                (body[:place] + mark + body[place:], within),
                (body[:place] + body[place + 1 :], inside),
            ):
                if is_json(damaged):
                    continue
                check(body, damaged, touched, SAMPLES)


def test_cut_body_keeps_every_event_before_the_cut() -> None:
    for body in BODIES:
        places = layout_of(body)
        for end in range(1, len(body)):
            touched = {number for number, (_, last) in enumerate(places) if last > end}
            check(body, body[:end], touched, SAMPLES)


def is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except ValueError:
        return False
    return True


@given(st.binary(max_size=200))
@example(b'{"batch":[{"type":1}')
@settings(max_examples=300)
def test_any_bytes_have_an_answer_that_accounts_for_them(body: bytes) -> None:
    payload = found_in(body)
    assert payload == found_in(body)
    for item in payload.items:
        if isinstance(item, Fragment):
            assert body[item.position : item.position + len(item.content)] == item.content


MARKS = st.sampled_from(
    [b'{"type":1', b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b'"batch":[', b"\xff", b"1", ONE]
)


@given(st.lists(MARKS, max_size=60).map(b"".join))
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_events_and_fragments_never_overlap(body: bytes) -> None:
    places = layout_of(body)
    assert all(first[1] <= second[0] for first, second in pairwise(places))
    found_in(body, reads_sessions=True)


# ---- bounds


@pytest.mark.parametrize(
    "part",
    [
        b"[",
        b"{",
        b'{"a":',
        b'"',
        b'"\\',
        b"\\",
        b"{}",
        b"}{",
        b'{"type":1,',
        b'{"type":1}',
        b" ",
        b'"batch":[',
        b"\xff",
    ],
)
def test_work_is_linear_and_takes_turns(part: bytes) -> None:
    def work_on(size: int) -> list[int]:
        body = part * (size // len(part))
        steps: list[int] = []

        async def turn(size_bytes: int) -> None:
            steps.append(size_bytes)

        asyncio.run(salvaged(body, LIMITS, turn))
        return steps

    small, large = work_on(200_000), work_on(800_000)
    assert sum(large) <= 5 * sum(small) + 100_000
    assert max(large) <= 8 * 800_000
    assert len(large) >= 3


def test_layout_is_bounded() -> None:
    body = b"{}" * (2 * PIECES_MAX) + ONE
    broken = BrokenJSON(body)
    list(broken.read())
    assert len(broken.pieces) <= PIECES_MAX + 1
    assert fragments_in(body) == [(broken.end, body[broken.end :])] or fragments_in(body)[-1][1].endswith(ONE)


def test_events_beyond_the_limit_are_one_fragment() -> None:
    limits = JSONLimits(events_max=1, event_bytes_max=1_000)
    items = found_in(b"%b%b" % (ONE, TWO), limits).items
    assert items == [orjson.loads(ONE), Fragment(len(ONE), TWO, RejectionCode.TOO_MANY_EVENTS)]
