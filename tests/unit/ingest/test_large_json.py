"""Claim: a body is read in short pieces, and reads as the parser reads it whole, whatever it is."""

import asyncio
import random
import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http.errors import BodyTooComplexError, InvalidJSONError, TooManyEventsError
from app.ingest import large_json
from app.ingest.large_json import (
    AT_ONCE_BYTES,
    COMMAS_AT_ONCE,
    MARKS_AT_ONCE,
    SMALL_BYTES,
    STEP_WORK,
    WINDOW_BYTES,
    JSONLimits,
    Oversize,
    brackets,
    count_marks,
)
from app.ingest.payload import read_json

LIMITS = JSONLimits(events_max=2_500, event_bytes_max=800 * 1024)


class Turns:
    """Counts the turns that a body takes, and what it says to have worked on in each."""

    def __init__(self) -> None:
        self.count = 0
        self.sizes: list[int] = []

    async def __call__(self, size_bytes: int) -> None:
        self.count += 1
        self.sizes.append(size_bytes)


def read(body: bytes, limits: JSONLimits = LIMITS) -> Any:
    return asyncio.run(read_json(body, limits, Turns()))


def turns_of(body: bytes) -> int:
    turns = Turns()
    asyncio.run(read_json(body, LIMITS, turns))
    return turns.count


def padded(batch: bytes) -> bytes:
    """A body that is cut whatever its batch is: what stands beside it makes it large."""
    return b'{"padding":"%b","batch":%b,"sentAt":"now"}' % (b"x" * AT_ONCE_BYTES, batch)


def event(number: int, **more: object) -> dict[str, object]:
    return {"messageId": str(number), "context": {"a": [{"b": "]}[{"}], "c": '\\"'}, "n": number, **more}


# ---- what is read


@pytest.mark.parametrize("name", ["batch", None])
@pytest.mark.parametrize("option", [0, orjson.OPT_INDENT_2])
def test_large_batch_reads_as_the_parser_reads_it(name: str | None, option: int) -> None:
    events = [event(number, text="é😀\n" * 300) for number in range(1_200)]
    document: Any = {"writeKey": "k", name: events, "sentAt": "now"} if name else events
    body = orjson.dumps(document, option=option)
    assert len(body) > AT_ONCE_BYTES
    assert read(body) == document


@pytest.mark.parametrize(
    "batch",
    [
        b"[]",
        b"[ \n]",
        b"[{}]",
        b'[1, "a", null, [], {}, [[1]], true]',
        b'[{"a":"\\""}, {"b":"\\\\"},{"c":"]"} ]',
        b'[{"batch":[1,2]}]',
    ],
)
def test_odd_batches_read_as_the_parser_reads_them(batch: bytes) -> None:
    assert read(padded(batch)) == orjson.loads(padded(batch))
    large = b'{"p":"%b"}' % (b"y" * 70_000)
    for joined in (b"[%b,%b" % (large, batch[1:]), b"%b,%b]" % (batch[:-1], large)):
        try:
            expected = orjson.loads(padded(joined))
        except ValueError:
            with pytest.raises(InvalidJSONError):
                read(padded(joined))
        else:
            assert read(padded(joined)) == expected


@pytest.mark.parametrize(
    "body",
    [
        padded(b"[") + b"]",
        padded(b"[{},]"),
        padded(b"[,{}]"),
        padded(b"[{} {}]"),
        padded(b"[{}}]"),
        padded(b"[{]}]"),
        padded(b'[{"a":1}')[:-20],
        padded(b"[]") + b"{}",
        padded(b"[{}]").replace(b'"batch":', b'"batch"'),
        padded(b'[{"p":"%b"} 5]' % (b"y" * 70_000)),
        padded(b'[{"p":"%b"}\f,5]' % (b"y" * 70_000)),
        padded(b'[{"p":"%b"},\f]' % (b"y" * 70_000)),
        padded(b'[{"p":"%b"},]' % (b"y" * 70_000)),
        padded(b'[,{"p":"%b"}]' % (b"y" * 3_000_000)),
        padded(b'[5 {"p":"%b"}]' % (b"y" * 3_000_000)),
        b'"' + b"x" * AT_ONCE_BYTES,
        b'"' + b"x" * AT_ONCE_BYTES + b"\\",
        b"]" * 200_000,
        b" " * (AT_ONCE_BYTES + 1),
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's own
        orjson.loads(body)
    with pytest.raises(InvalidJSONError):
        read(body)


@pytest.mark.parametrize(
    "names",
    [
        b'"batch":[1],"batch":[2,{}]',
        b'"batch":[1],"batch":5',
        b'"batch":[1],"batch":[]',
        b'"x\\"batch":[1]',
        b'"a":{"batch":[1]}',
        b'"batch"   \n:   [7]',
        b'"batch":{"batch":[1]}',
        b'"batch":[1],"b\\u0061tch":[]',
        b'"b\\u0061tch":[],"batch":[1]',
        b'"batch":[1],"b\\u0061tch":[],"batch":[]',
        b'"batch":[1],"a":"\\u00e9"',
    ],
)
def test_batch_is_found_by_its_name_and_the_last_one_counts(names: bytes) -> None:
    body = b'{"padding":"%b",%b}' % (b"x" * (AT_ONCE_BYTES - 1_000), names + b',"more":"%b"' % (b"y" * 2_000))
    expected = orjson.loads(body)
    found = read(body)
    if isinstance(expected.get("batch"), list):
        assert found == expected
    else:
        assert found == expected or isinstance(found, Oversize)


def test_batch_whose_name_is_hidden_is_read_only_where_that_is_cheap() -> None:
    names = b'"p":"%b","batch":[1],"b\\u0061tch":[2,{"a":1}]'
    small = b"{%b}" % names % (b"x" * SMALL_BYTES)
    assert read(small) == orjson.loads(small)
    with pytest.raises(BodyTooComplexError):
        read(b"{%b}" % names % (b"x" * AT_ONCE_BYTES))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (b'"batch":[{"a":1},{"a":!}]', "counted from byte"),
        (b'"batch":[{"a":1}],"a":!', "counted without the events"),
    ],
)
def test_place_of_what_is_no_json_is_told_with_where_it_is_counted_from(names: bytes, told: str) -> None:
    body = b'{"padding":"%b",%b}' % (b"x" * AT_ONCE_BYTES, names)
    with pytest.raises(InvalidJSONError) as refusal:
        read(body)
    assert told in refusal.value.detail
    found = re.search(r"column (\d+)(?:.* byte ([\d,]+))?", refusal.value.detail)
    assert found is not None
    column, start = int(found[1]), int((found[2] or "1").replace(",", ""))
    cut = 0 if found[2] else len(b'{"a":1}')
    assert body[column + start - 2 + cut] == ord("!")


@pytest.mark.parametrize("window_bytes", range(2, 30))
def test_brackets_in_strings_are_passed_over_in_windows_of_any_size(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(large_json, "WINDOW_BYTES", window_bytes)
    text = 'a]} {[,: \\" \\\\'
    body = orjson.dumps([{text: [text, {"b": text}]}, [], text])
    found = [chr(body[place]) for place in large_json.brackets(body) if place >= 0]
    assert "".join(found) == "[{[{}]}[]]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='a"\\[]{},:é', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\[', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, max_size=6), st.integers(0, 2**32), st.sampled_from([0, orjson.OPT_INDENT_2]))
def test_any_batch_reads_alike_in_windows_and_groups_of_any_size(
    batch: list[Any], seed: int, option: int
) -> None:
    document = {"x": "]", "batch": batch, "y": 1}
    body = orjson.dumps(document, option=option)
    rng = random.Random(seed)
    if rng.random() < 0.3:  # damaged
        place = rng.randrange(len(body))
        body = body[:place] + rng.choice([b"", b'"', b"]", b",", b"\\"]) + body[place + 1 :]
    try:
        expected = orjson.loads(body)
    except ValueError:
        expected = InvalidJSONError
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "SMALL_BYTES", 0)
        patch.setattr(large_json, "MARKS_AT_ONCE", -1)
        patch.setattr(large_json, "is_cheap", lambda _piece: True)
        patch.setattr(large_json, "WINDOW_BYTES", rng.randint(2, 40))
        patch.setattr(large_json, "GROUP_BYTES", rng.randint(1, 40))
        if expected is InvalidJSONError:
            with pytest.raises(InvalidJSONError):
                read(body)
        else:
            assert read(body) == expected


# ---- what it costs


def test_small_body_takes_one_turn() -> None:
    assert turns_of(orjson.dumps({"batch": [event(n) for n in range(100)]})) == 1


def test_large_body_takes_a_turn_for_each_piece() -> None:
    body = orjson.dumps([event(n, text="x" * 3_000) for n in range(2_500)])
    assert turns_of(body) >= len(body) / (70 * 1024)


def test_looking_for_cuts_pauses_whatever_the_body_is() -> None:
    for body in (
        b'["' + b"\\n" * 1_000_000 + b'"]',
        b"[" * 100_000,
        b'{"x":1,' * 100_000,
        b'"","",' * 300_000,
    ):
        pauses = sum(place < 0 for place in brackets(body))
        assert pauses >= len(body) // (STEP_WORK + WINDOW_BYTES)
        assert pauses >= sum(place >= 0 for place in brackets(body)) // 10_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"{}"] * 600_001) + b"]",
        b"{" + b",".join(b'"%x":1' % n for n in range(600_001)) + b"}",
        b"[" * 600_001,
        b'["' + b":" * 600_001 + b'"]',
        b"[" + b"1," * 1_500_000 + b"1]",
    ],
)
def test_body_with_too_many_marks_is_refused_unparsed(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "read_document", None)
    with pytest.raises(BodyTooComplexError):
        read(body)


def test_event_with_too_many_marks_is_refused() -> None:
    names = b"{" + b",".join(b'"%x":1' % n for n in range(MARKS_AT_ONCE + 1)) + b"}"
    for body in (b"[{},%b]" % names, b'{"batch":[%b]}' % names, names, padded(b"[%b]" % names)):
        with pytest.raises(BodyTooComplexError):
            read(body)
    with pytest.raises(BodyTooComplexError):
        read(names)


def test_marks_in_strings_cost_nothing() -> None:
    text = orjson.dumps({"a": [{"b": 1, "c": "\\"}] * 10}).decode() * 3_000
    event = {"messageId": "1", "replay": text, "q": '"' * 1_000, "s": "\\" * 1_001}
    body = orjson.dumps(event)
    assert count_marks(body) > MARKS_AT_ONCE
    assert len(body) < AT_ONCE_BYTES
    assert read(body) == event


def test_body_without_a_key_in_the_head_is_never_cut() -> None:
    limits = JSONLimits(events_max=2_500, event_bytes_max=800 * 1024, may_cut=False)
    few = b"[" + b",".join([b"{}"] * (MARKS_AT_ONCE - 1)) + b"]"
    assert len(read(few, limits)) == MARKS_AT_ONCE - 1
    for many in (b"[{}," + few[1:], b"[" + b"1," * COMMAS_AT_ONCE + b"1, 1]"):
        with pytest.raises(BodyTooComplexError):
            read(many, limits)


def test_too_many_items_are_refused_before_the_rest_is_parsed() -> None:
    body = b"[" + b",".join([b'{"m":"%b"}' % (b"x" * 1_000)] * 2_501) + b"]"
    with pytest.raises(TooManyEventsError):
        read(body)


def test_usual_largest_batches_pass() -> None:
    usual: dict[str, Any] = {"messageId": "m" * 36, "type": "track", "timestamp": "2026-01-01T00:00:00.000Z"}
    usual |= {"context": {"library": {"name": "x", "version": "1"}, "page": {"url": "https://a.example/b"}}}
    usual |= {"properties": {f"name{n}": f"value {n}, and some words of it " * 4 for n in range(20)}}
    body = orjson.dumps({"batch": [usual] * 2_500})
    assert 6 * 2**20 < len(body) <= 8 * 2**20
    assert count_marks(body) < large_json.MARKS_MAX
    assert len(read(body)["batch"]) == 2_500


# ---- oversize


def test_item_that_is_too_large_as_sent_is_set_aside_and_its_batch_is_read() -> None:
    large = b'{"messageId":"1","writeKey":"s3cret","p":"%b"}' % (b"x" * AT_ONCE_BYTES)
    items = read(b'{"batch":[{"messageId":"0"}, %b ,{"messageId":"2"},5,%b]}' % (large, large))["batch"]
    assert [items[0], items[2], items[3]] == [{"messageId": "0"}, {"messageId": "2"}, 5]
    assert items[1] == items[4] == Oversize("1", large.replace(b"s3cret", b""), "s3cret")


def test_work_on_a_large_item_is_charged_with_its_size() -> None:
    turns = Turns()
    large = event(1, text="x" * (AT_ONCE_BYTES + 1))

    asyncio.run(read_json(orjson.dumps({"batch": [event(0), large]}), LIMITS, turns))

    assert max(turns.sizes[1:]) > AT_ONCE_BYTES  # the first one is for looking at all of it


def test_single_event_that_is_too_large_as_sent_is_set_aside() -> None:
    large = b'{"messageId":"1","p":"%b"}' % (b"x" * AT_ONCE_BYTES)
    assert read(large) == Oversize("1", large)
    wide = JSONLimits(events_max=9, event_bytes_max=2 * AT_ONCE_BYTES)
    assert read(large, wide) == orjson.loads(large)
