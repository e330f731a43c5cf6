"""
Claim: integers are ids and blank text is none, equal numbers are equal in a fingerprint, also across a change
of that rule, and an event in whose record a number is null says so.
"""

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.errors import SessionFieldsInvalidError
from app.ingest.client_sessions import client_session_of
from app.ingest.event_limits import EventLimits
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.large_json import JSONLimits
from app.ingest.parse import parse_events
from app.ingest.receipts import NUMBER_LOST, answer
from dedupe.decide.admission import DUPLICATE, NEW
from dedupe.model.identity import BLANKS, EQUAL_NUMBERS, RETRY_FIELDS, Identity, fingerprint_of, is_blank
from dedupe.model.json_document import mend_surrogates
from dedupe.model.quarantine import Quarantine
from dedupe.model.record import FLAG_ID_ASSIGNED, FLAG_NOT_IDEMPOTENT
from dedupe.model.types import Event, Topic
from dedupe.submission import Outcomes

IDENTITY = Identity(b"a secret of some bytes")
LIMITS = EventLimits(800_000, 32, 8_000_000)
ARRIVAL = Arrival("web", 1_700_000_000_000)
BEFORE: frozenset[str] = frozenset()


def identified(
    body: bytes, *, arrival: Arrival = ARRIVAL, earlier: list[frozenset[str]] | None = None
) -> Identified:
    identifier = Identifier(
        IDENTITY, 8, Quarantine(IDENTITY, Topic("q", 1)), LIMITS, earlier_ignore=earlier or []
    )
    payload = asyncio.run(parse_events(body, JSONLimits(2_500, 800_000), _no_turn))
    found = Identified()
    found.take(identifier.identify(payload, arrival, lossy=found.lossy))
    return found


async def _no_turn(_work_bytes: int) -> None:
    """Let nobody else work."""


def event_of(body: bytes, **surroundings: Any) -> Event:
    (event,) = identified(body, **surroundings).events
    return event


def with_id(message_id: str) -> bytes:
    return b'{"messageId":%b,"type":"track"}' % message_id.encode()


# ---- ids


@pytest.mark.parametrize(
    ("given_id", "text"),
    [
        ("12345", "12345"),
        ("-5", "-5"),
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("12345.0", "12345"),
        ("1.2345e4", "12345"),
        ("18446744073709551616", "18446744073709551616"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1" * 255, "1" * 255),
        ("1e20", "100000000000000000000"),
    ],
)
def test_integer_is_its_decimal_text(given_id: str, text: str) -> None:
    event, as_text = event_of(with_id(given_id)), event_of(with_id(f'"{text}"'))
    assert (event.message_id, event.flags) == (text, 0)
    assert event == as_text
    assert orjson.loads(event.value)["messageId"] == text


@pytest.mark.parametrize("given_id", ["1.5", "1e400", "1" * 256, "1e300", "true", "false", "[]", "{}", "NaN"])
def test_other_values_are_no_ids(given_id: str) -> None:
    (rejection,) = identified(with_id(given_id)).rejections
    assert (rejection.code, rejection.message_id) == ("message_id_invalid", None)


@given(st.text(st.sampled_from(BLANKS), max_size=5))
def test_blank_text_is_no_id(blank: str) -> None:
    body = with_id(orjson.dumps(blank).decode())
    one, other = event_of(body), event_of(body)
    assert one.flags == FLAG_ID_ASSIGNED | FLAG_NOT_IDEMPOTENT
    assert one.message_id != other.message_id
    assert orjson.loads(one.value)["messageId"] == one.message_id
    arrival = ARRIVAL._replace(idempotency_key=b"k")
    repeated = event_of(body, arrival=arrival)
    assert repeated.flags == FLAG_ID_ASSIGNED
    assert repeated == event_of(b'{"type":"track"}', arrival=arrival)


@given(st.text(min_size=1, max_size=20).filter(lambda text: not is_blank(text)))
def test_other_text_keeps_every_character(text: str) -> None:
    assert event_of(with_id(orjson.dumps(text).decode())).message_id == text


@pytest.mark.parametrize(
    "blank", ["", " ", "\t\n", "\u200b", "\ufeff", "\u2060", "\xa0", "\u180e", "\u3000 \u200d"]
)
def test_blank_characters(blank: str) -> None:
    assert is_blank(blank)
    assert not is_blank(f"{blank}x{blank}")


# ---- numbers


@pytest.mark.parametrize("other", ["10", "10.0", "1e1", "1E+1", "10.00", "100e-1", "0.1e2"])
def test_number_spelled_anew_is_the_same_event(other: str) -> None:
    body = b'{"messageId":"a","type":"track","properties":{"x":[{"n":%b}],"m":2.50}}'
    one, again = event_of(body % b"10"), event_of(body % other.encode())
    assert (one.key, one.fingerprint) == (again.key, again.fingerprint)
    assert orjson.loads(again.value)["properties"]["x"][0]["n"] == 10


def test_digits_are_stored_in_fields_of_the_event_and_of_its_batch() -> None:
    long, precise = b"123456789012345678901234567890", b"0.12345678901234567890"
    body = b'{"context":{"n":%b},"batch":[{"messageId":"a","type":"track","_metadata":{"x":%b},"p":%b}]}'
    value = event_of(body % (long, precise, long)).value
    assert value.count(long) == 2
    assert value.count(precise) == 1


def test_retry_of_what_was_stored_before_equal_numbers_is_a_duplicate() -> None:
    body = b'{"messageId":"a","type":"track","n":[10.0,1e20,123456789012345678901234567890,2.5,NaN]}'
    stored = orjson.dumps(orjson.loads(body.replace(b"NaN", b"null")), option=orjson.OPT_SORT_KEYS)
    before = event_of(stored.replace(b"10.0", b"10")).fingerprint  # of the same rule, without such numbers
    now = event_of(body, earlier=[BEFORE])
    assert before != now.fingerprint
    assert now.earlier_fingerprints == (fingerprint_of(stored),)
    after = event_of(body, earlier=[frozenset({EQUAL_NUMBERS, "attempt"})])
    assert after.earlier_fingerprints == (after.fingerprint,) == (now.fingerprint,)
    assert event_of(b'{"messageId":"a","n":10}', earlier=[BEFORE]).earlier_fingerprints == ()


def _object(fields: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"


SPELLED = st.one_of(
    st.sampled_from(
        ["-0", "-0.0", "0e5", "1e22", "1e23", "18446744073709551616", "-9223372036854775809", "1e-400"]
    ),
    st.integers(-(10**40), 10**40).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from(['"a"', "null", "true", '"\\ud83d"', "NaN", "-Infinity"]),
)
DOCUMENTS = st.recursive(
    SPELLED,
    lambda children: st.one_of(
        st.lists(children, max_size=4).map(lambda each: f"[{','.join(each)}]"),
        st.dictionaries(st.sampled_from(["a", "b", "sentAt", "context"]), children, max_size=3).map(_object),
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["properties", "value", "sentAt", "_metadata", "context"]), DOCUMENTS))
def test_retry_over_the_upgrade_is_a_duplicate_whatever_numbers_an_event_has(fields: dict[str, str]) -> None:
    """What was stored before was compared as orjson reads and writes it, see the golden vectors."""
    body = _object({"messageId": '"1"', "type": '"track"'} | fields).encode()
    read = orjson.loads(mend_surrogates(body).replace(b"-Infinity", b"null").replace(b"NaN", b"null"))
    kept = {name: value for name, value in read.items() if name not in RETRY_FIELDS}
    before = fingerprint_of(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS))

    event = event_of(body, earlier=[BEFORE])
    again = event_of(body, earlier=[BEFORE])

    assert before in (event.fingerprint, *event.earlier_fingerprints)
    assert (again.fingerprint, again.value) == (event.fingerprint, event.value)
    assert event_of(event.value).fingerprint  # what is stored is an event


@pytest.mark.regression("A number beyond every float cost its whole batch a 400.")
def test_lost_number_is_warned_of_in_its_event_alone_and_at_each_retry() -> None:
    body = (
        b'[{"messageId":"a","n":1e400},{"messageId":true},{"messageId":"b"},{"messageId":"c","n":-Infinity}]'
    )
    found = identified(body)
    assert found.lossy == {0, 3}
    answers = [
        answer(found, Outcomes([verdict] * 3, [5, 6, 7]), wants_receipts=True) for verdict in (NEW, DUPLICATE)
    ]
    assert answers[0].body == answers[1].body
    receipts = orjson.loads(answers[0].body)["receipts"]
    assert [receipt.get("warnings") for receipt in receipts] == [[NUMBER_LOST], None, [NUMBER_LOST]]
    assert orjson.loads(found.events[0].value)["n"] is None


def test_lost_number_of_a_batch_is_warned_of_in_each_event() -> None:
    found = identified(b'{"context":{"n":NaN},"batch":[{"messageId":"a"},{"messageId":"b"}]}')
    assert found.lossy == {0, 1}


@pytest.mark.parametrize("depth", [10, 31, 32, 33, 60, 250, 400])
def test_deep_events_with_such_numbers_are_kept_whole(depth: int) -> None:
    long = b"123456789012345678901234567890"
    body = b'{"messageId":"a","p":%b%b%b}' % (b"[" * (depth - 1), long, b"]" * (depth - 1))
    found = identified(body)
    kept = [event.value for event in found.events] + [event.value for event in found.quarantined]
    assert [value.count(long) for value in kept] == [1]
    assert bool(found.events) == (depth <= 32)


# ---- client sessions


CLIENT = "phone-1"
SESSION = "2VTbqWv1mJzvcmYSBnqZiKEGcDj"


def in_session(sequence: str, fields: str = "") -> Event:
    """Return an event of a client session, by the spelling of its numbers."""
    body = b'{"client":"%b","session":"%b"%b,"batch":[{"messageId":"1","type":"track","sequence":%b}]}' % (
        CLIENT.encode(),
        SESSION.encode(),
        fields.encode(),
        sequence.encode(),
    )
    payload = asyncio.run(parse_events(body, JSONLimits(2_500, 800_000), _no_turn))
    session = client_session_of({}, payload, IDENTITY, "web")
    identifier = Identifier(IDENTITY, 8, Quarantine(IDENTITY, Topic("q", 1)), LIMITS)
    event, *_work = identifier.identify(payload, ARRIVAL._replace(session=session))
    assert isinstance(event, Event)
    return event


@pytest.mark.regression("The sequence 10.0 was refused where 10 was taken.")
@pytest.mark.parametrize("sequence", ["7.0", "7e0", "70e-1", "7.000", "0.7E+1"])
def test_sequence_spelled_anew_is_the_same_place_in_its_session(sequence: str) -> None:
    event, original = in_session(sequence), in_session("7")

    assert (event.key, event.secondary_key) == (original.key, original.secondary_key)
    assert event.fingerprint == original.fingerprint
    assert event.session == original.session


@pytest.mark.parametrize("number", ["3.0", "3e0", "0.3e1"])
def test_numbers_of_a_session_spelled_anew_are_the_same(number: str) -> None:
    fields = ',"epoch":%s,"acknowledgedThrough":%s'

    assert in_session("7", fields % (number, number)).session == in_session("7", fields % (3, 3)).session


@pytest.mark.parametrize(
    "number", ["3.5", "-1.0", "1e30", "1e400", "true", '"3"', "1e-400", "18446744073709551616"]
)
def test_what_is_no_whole_number_is_no_sequence_and_no_epoch(number: str) -> None:
    body = b'{"client":"c","session":"%b","epoch":%b,"batch":[]}' % (SESSION.encode(), number.encode())
    payload = asyncio.run(parse_events(body, JSONLimits(2_500, 800_000), _no_turn))

    with pytest.raises(SessionFieldsInvalidError):
        client_session_of({}, payload, IDENTITY, "web")
    with pytest.raises(AssertionError):
        in_session(number)
