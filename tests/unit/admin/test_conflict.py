"""Claim: a conflict names the fields in which it differs from the stored event, or says why it cannot."""

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admin.conflict import (
    EXACT_BYTES,
    GONE,
    NAMED_MAX,
    SAME,
    UNNAMED,
    UNREADABLE,
    VALUE_CHARS_MAX,
    Comparison,
    differing,
    differing_fields,
)
from dedupe.model.identity import Identity
from dedupe.model.record import build_record
from dedupe.model.types import Event
from dedupe.storage.quarantine_reader import Place
from tests.support.sim.sim_log import SimStore

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)
)
FIELDS = st.dictionaries(st.sampled_from("abcd"), VALUES)


def names(one: bytes, other: bytes) -> list[str]:
    return list(differing_fields(one, other))


@given(one=FIELDS, other=FIELDS)
def test_exactly_the_differing_fields_are_named(one: dict[str, Any], other: dict[str, Any]) -> None:
    as_text = [
        {name: orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for name, value in each.items()}
        for each in (one, other)
    ]
    expected = sorted(
        name for name in one.keys() | other.keys() if as_text[0].get(name) != as_text[1].get(name)
    )
    assert names(orjson.dumps(one), orjson.dumps(other)) == expected


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b"10.0", b"10", True),
        (b"1e2", b"100", True),
        (b"-0.0", b"0", True),
        (b"1e400", b"1e400", True),
        (b"1e400", b"2e400", False),
        (b"123456789012345678901234567890", b"123456789012345678901234567891", False),
        (b"0.1234567890123456789", b"0.1234567890123456788", False),
        (b"true", b"1", False),
        (b"null", b"false", False),
        (b'"1"', b"1", False),
        (b"[1,2]", b"[2,1]", False),
    ],
)
def test_values_are_compared_digit_by_digit(one: bytes, other: bytes, is_same: bool) -> None:
    assert names(b'{"p":%b}' % one, b'{"p":%b}' % other) == ([] if is_same else ["p"])


def test_what_retries_and_the_gateway_change_is_not_named() -> None:
    one = b'{"sentAt":1,"receivedAt":1,"_metadata":{},"writeKey":"a","mine":1,"event":"a"}'
    other = b'{"sentAt":2,"event":"b","mine":2}'
    assert list(differing_fields(one, other, frozenset({"mine"}))) == ["event"]


def test_values_are_shown_shortened_and_absent_ones_as_absent() -> None:
    found = differing_fields(b'{"a":1e400,"b":{"x":[true,null,"\xc3\xbc"]}}', b'{"a":%d}' % 10**300)
    assert found["a"][0] == "1E+400"
    assert found["b"] == ('{"x":[true,null,"ü"]}', None)
    assert found["a"][1] is not None
    assert len(found["a"][1]) == VALUE_CHARS_MAX


@pytest.mark.parametrize("value", [b"[]", b"{", b'{"a":1e99999999999999999999}', b"\xff", b"[" * 100_000])
def test_what_is_no_event_is_not_compared(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"no object|cannot be read|Expecting|decode"):
        differing_fields(b"{}", value)


@given(one=FIELDS, other=FIELDS)
async def test_fields_of_long_events_are_named_as_those_of_short_ones(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    long = {"long": "x" * EXACT_BYTES, "event": 'a "b", {c}'}
    expected = names(orjson.dumps(one), orjson.dumps(other))
    assert list(await differing(orjson.dumps(one | long), orjson.dumps(long | other))) == expected


async def test_long_field_is_compared_byte_by_byte_and_shown_shortened() -> None:
    one, other = ({"a": "x" * EXACT_BYTES + end, "b": 1, "sentAt": "x" * EXACT_BYTES + end} for end in "12")
    found = await differing(orjson.dumps(one), orjson.dumps(other))
    assert list(found) == ["a"]
    assert all(text is not None and len(text) == VALUE_CHARS_MAX for text in found["a"])
    assert list(await differing(orjson.dumps(one), b"{}")) == ["a", "b"]


@pytest.mark.parametrize("value", [b"[]", b"{", b'{"a":1,"b', b"[" * 100_000, b'{"a":' + b"[" * 100_000])
async def test_long_value_that_is_no_event_is_not_compared(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"no object|cannot be read"):
        await differing(b'{"a":"%b"}' % (b"x" * EXACT_BYTES), value)


@pytest.mark.regression("A conflict of large events held every request for half a second.")
async def test_comparison_of_large_events_holds_no_loop() -> None:
    """In steps of bounded work: the longest is far below that of parsing an event."""
    one = orjson.dumps({"p": [1.5] * 200_000, "q": {str(number): number for number in range(20_000)}})
    other = orjson.dumps({"p": [1.5] * 200_001} | {f"f{number}": number for number in range(20_000)})
    steps = 0
    comparing = asyncio.ensure_future(differing(one, other))
    while not comparing.done():
        await asyncio.sleep(0)
        steps += 1
    assert len(comparing.result()) == NAMED_MAX
    assert steps > 30


async def test_comparison_asks_the_log_and_says_what_it_does_not_know() -> None:
    store = SimStore()
    store.create_topic("events", 2)
    log = store.partition_log("events", 1)
    await log.fence()
    values = (b'{"event":"First","price":1}', b"[]")
    key = Identity(b"a secret of the tests").message_key("web", "m")
    first = await log.append(
        [
            build_record(Event(key, 1, b"f" * 8, "web", "m", value), lane_seq=number, timestamp_ms=5)
            for number, value in enumerate(values)
        ]
    )
    comparison = Comparison(store, "events")
    content = b'{"event":"Second","price":1}'
    original = {"partition": 1, "offset": first, "timestamp_ms": 5}
    assert await comparison.of(content, Place(1, first)) == {
        "original": original,
        "differs": ["event"],
        "why": None,
    }
    shown = await comparison.of(content, Place(1, first), is_shown=True)
    assert shown["values"] == {"event": ['"First"', '"Second"']}
    assert (await comparison.of(values[0], Place(1, first)))["why"] == SAME
    assert (await comparison.of(content, Place(1, first + 1)))["why"] == UNREADABLE
    for place, why in ((Place(1, first + 2), GONE), (Place(7, 0), GONE), (None, UNNAMED)):
        told = await comparison.of(content, place)
        assert (told["differs"], told["why"]) == (None, why)

    assert await comparison.names(content, Place(1, first), b"key") == ["event"]
    store.partition("events", 1).records.clear()
    assert await comparison.names(content, Place(1, first), b"key") == ["event"]  # remembered
    assert await comparison.names(content, Place(1, first), b"other") is None
