"""Claim: a body is read in short pieces, and reads as the parser reads it whole, whatever it is."""

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http import json_scan
from app.http.errors import BodyTooLargeError, InvalidJSONError
from app.http.json_scan import Scan
from app.ingest import large_json
from app.ingest.items import FREE_RATE, Fragment, Oversize, Packed
from app.ingest.large_json import (
    AT_ONCE_BYTES,
    EVENT_MARKS_MAX,
    MARKS_AT_ONCE,
    SMALL_BYTES,
    JSONLimits,
    count_marks,
    is_cheap,
)
from app.ingest.parse import read_json
from tests.support.pieces import Turn, least_pieces_of, pieces_of

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


def noting(parsed: list[bytes]) -> Callable[[bytes], object]:
    """Return a parser that notes what it is given."""

    def read_document(piece: bytes) -> object:
        parsed.append(piece)
        return orjson.loads(piece)

    return read_document


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


def test_batch_whose_name_is_escaped_is_cut_like_any() -> None:
    names = b'"p":"%b","batch":[1],"b\\u0061tch":[2,{"a":1}]'
    for size in (SMALL_BYTES, AT_ONCE_BYTES):
        body = b"{%b}" % names % (b"x" * size)
        assert read(body) == orjson.loads(body)


@pytest.mark.regression("A large body with a hidden empty batch was read otherwise than the parser does.")
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
    monkeypatch.setattr(json_scan, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(json_scan, "FIRST_WINDOW_BYTES", 2)
    text = 'a]} {[,: \\" \\\\'
    elements = [orjson.dumps(part) for part in ({text: [text, {"b": text}]}, [], text, [[text], {}], 5)]
    scan = Scan(b"[%b]" % b" , ".join(elements), 1)
    found = []
    for _ in elements:
        start = scan.place
        for _ in scan.past_element():
            pass
        found.append(scan.text[start : scan.place].strip())
        scan.place += 1
    assert found == elements


@pytest.mark.parametrize("body", [b"[" * 2_000, b'{"a":' * 2_000, b"[[", b'["', b'["\\', b'[[1,"]'])
def test_container_without_an_end_or_too_deep_is_no_json(body: bytes) -> None:
    with pytest.raises(InvalidJSONError):
        for _ in Scan(body, 0).past_container():
            pass


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
        patch.setattr(json_scan, "WINDOW_BYTES", rng.randint(2, 40))
        patch.setattr(json_scan, "FIRST_WINDOW_BYTES", rng.randint(1, 40))
        patch.setattr(large_json, "DOCUMENT_BYTES_MAX", rng.choice([0, 100, 10_000]))
        patch.setattr(large_json, "GROUP_BYTES", rng.randint(1, 40))
        if expected is InvalidJSONError:
            with pytest.raises(InvalidJSONError):
                read(body)
        else:
            assert unpacked(read(body)) == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, max_size=9), st.integers(0, 9), st.integers(1, 40), st.integers(1, 40))
def test_items_beyond_the_limit_are_fragments_with_each_of_them_once(
    batch: list[Any], events_max: int, group_bytes: int, rest_bytes: int
) -> None:
    body = orjson.dumps({"x": "]", "batch": batch, "y": 1}, option=orjson.OPT_INDENT_2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "SMALL_BYTES", 0)
        patch.setattr(large_json, "GROUP_BYTES", group_bytes)
        patch.setattr(large_json, "REST_BYTES", rest_bytes)
        document = read(body, JSONLimits(events_max, 800 * 1024))
    assert (document["x"], document["y"]) == ("]", 1)
    items, rest = document["batch"][:events_max], document["batch"][events_max:]
    assert items == batch[:events_max]
    assert {item.reason for item in rest} <= {"too_many_events"}
    assert [event for item in rest for event in orjson.loads(item.content)] == batch[events_max:]
    assert all(body[item.position :].lstrip().startswith(item.content[1:-1]) for item in rest)


def unpacked(document: Any) -> Any:
    items = document.get("batch") if isinstance(document, dict) else document
    if isinstance(items, list):
        items[:] = [orjson.loads(item.content) if isinstance(item, Packed) else item for item in items]
    return document


# ---- what it costs


def test_small_body_takes_one_turn() -> None:
    assert turns_of(orjson.dumps({"batch": [event(n) for n in range(100)]})) == 1


def test_large_body_takes_a_turn_for_each_piece() -> None:
    body = orjson.dumps([event(n, text="x" * 3_000) for n in range(2_500)])
    assert turns_of(body) >= len(body) / (70 * 1024)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "opening brackets": lambda: b"[" * (8 << 20),
    "opening objects": lambda: b'{"a":' * (1 << 20),
    "closing brackets": lambda: b"]" * (8 << 20),
    "quotes": lambda: b'"' * (8 << 20),
    "backslashes": lambda: b"\\" * (8 << 20),
    "quotes and backslashes": lambda: b'"\\' * (4 << 20),
    "commas": lambda: b"," * (8 << 20),
    "blanks": lambda: b" " * (8 << 20),
    "empty lists": lambda: b"[%b]" % b",".join([b"[]"] * 2_700_000),
    "empty objects": lambda: b'{"batch":[%b]}' % b",".join([b"{}"] * 2_700_000),
    "empty strings": lambda: b"[%b]" % b",".join([b'""'] * 1_000_000),
    "numbers": lambda: b"[%b]" % b",".join([b"1"] * 4_000_000),
    "deep lists": lambda: b"[%b]" % b",".join([b"[" * 40 + b"]" * 40] * 100_000),
    "deeper lists": lambda: b"[%b]" % b",".join([b"[" * 900 + b"]" * 900] * 4_000),
    "pairs": lambda: (
        b"[%b]" % b",".join([b'{"messageId":"1","a":[%b]}' % b",".join([b"[1,2]"] * 120_000)] * 11)
    ),
    "names": lambda: b"{%b}" % b",".join([b'"%x":1' % n for n in range(800_000)]),
    "unclosed": lambda: b"[[[[%b]" % b",".join([b"{}"] * 2_700_000),
}


def reading(body: bytes) -> Callable[[Turn], Coroutine[Any, Any, None]]:
    """Return the work of reading a body, whether it is JSON or not."""

    async def read(turn: Turn) -> None:
        with suppress(InvalidJSONError):
            await read_json(body, JSONLimits(20_000, 800 * 1024), turn)

    return read


@cache
def usual_cpu() -> float:
    """What a body of as many bytes costs that has usual events, on this machine."""
    body = orjson.dumps([event(number, text="x" * 300) for number in range(20_000)])
    assert 7 << 20 < len(body) < 9 << 20
    return min(sum(pieces_of(reading(body))) for _ in range(3))


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_body_holds_the_loop_or_takes_for_ever(kind: str) -> None:
    bound_s = 0.5 * usual_cpu()
    pieces = least_pieces_of(reading(HOSTILE[kind]()), bound_s)
    assert max(pieces) < bound_s
    assert sum(pieces) < 40 * usual_cpu()


@pytest.mark.parametrize(
    "event",
    [
        b'{"messageId":"1","path":[%b]}' % b",".join([b"[1,2]"] * 79_000),
        b'{"messageId":"1","path":[%b]}' % b",".join([b"1"] * 230_000),
        b'{"messageId":"1","path":[%b]}' % b",".join([b'{"a":1}'] * 60_000),
    ],
)
def test_event_of_many_short_tokens_is_read_alone_and_in_a_batch(event: bytes) -> None:
    for body in (event, b"[%b]" % event, b'{"batch":[%b]}' % event, padded(b"[%b]" % event)):
        assert read(body) == orjson.loads(body)


def test_event_that_is_too_expensive_to_parse_is_set_aside_and_its_batch_is_read() -> None:
    lists = b'{"messageId":"1","path":[%b]}' % b",".join([b"[]"] * (EVENT_MARKS_MAX + 1))
    for body in (b'[{"a":1}, %b ,{"b":1}]' % lists, b'{"batch":[{"a":1},%b,{"b":1}]}' % lists):
        document = read(body)
        items = document["batch"] if isinstance(document, dict) else document
        assert items == [{"a": 1}, Fragment(body.index(lists), lists, "event_too_complex"), {"b": 1}]
    assert read(b" %b\n" % lists) == Fragment(1, lists, "event_too_complex")
    spaced = lists.replace(b"[]", b"[  ]")
    assert read(spaced) == Fragment(0, spaced, "event_too_complex")  # its blanks do not count
    assert read(lists, JSONLimits(9, 400_000)) == Oversize(None, lists)
    with pytest.raises(InvalidJSONError):
        read(lists + lists)
    with pytest.raises(InvalidJSONError):
        read(b'{"batch":[{}],"path":%b}' % lists)


def test_marks_in_strings_cost_nothing() -> None:
    text = orjson.dumps({"a": [{"b": 1, "c": "\\"}] * 10}).decode() * 3_000
    event = {"messageId": "1", "replay": text, "q": '"' * 1_000, "s": "\\" * 1_001}
    body = orjson.dumps(event)
    assert count_marks(body) > MARKS_AT_ONCE
    assert len(body) < AT_ONCE_BYTES
    assert read(body) == event


def test_rest_of_too_many_items_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    item = b'{"m":"%b"}' % (b"x" * 1_000)
    parsed: list[bytes] = []
    monkeypatch.setattr(large_json, "read_document", noting(parsed))
    body = b"[" + b",".join([item] * 7_500) + b"]"
    items = read(body)
    assert items[:2_500] == [orjson.loads(item)] * 2_500
    assert sum(map(len, parsed)) < 2_600 * len(item) + SMALL_BYTES
    assert all(len(rest.content) <= large_json.REST_BYTES for rest in items[2_500:])
    assert sum(orjson.loads(rest.content) != [] for rest in items[2_500:]) < 60


def test_top_level_is_checked_before_the_items_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(large_json, "read_document", noting(parsed))

    def check(top: Any) -> None:
        assert top == {"batch": [], "writeKey": "k"}
        raise BodyTooLargeError

    body = b'{"batch":[%b],"writeKey":"k"}' % b",".join([b'{"m":"%b"}' % (b"x" * 1_000)] * 2_500)
    with pytest.raises(BodyTooLargeError):
        read(body, JSONLimits(20_000, 800 * 1024, check_top=check))
    assert parsed == [b'{"batch":[],"writeKey":"k"}']


def test_items_beyond_the_memory_of_a_document_are_packed() -> None:
    item = {"messageId": "1", "writeKey": "k", "a": [[]] * 100_000}
    body = orjson.dumps({"batch": [item] * 8, "sentAt": "now"})
    document = read(body)
    kinds = [type(found) for found in document["batch"]]
    assert kinds == [dict] * 3 + [Packed] * 5
    assert document["batch"][7] == Packed(orjson.dumps(item), "k", is_event=True)


def test_usual_largest_batches_pass() -> None:
    usual: dict[str, Any] = {"messageId": "m" * 36, "type": "track", "timestamp": "2026-01-01T00:00:00.000Z"}
    usual |= {"context": {"library": {"name": "x", "version": "1"}, "page": {"url": "https://a.example/b"}}}
    usual |= {"properties": {f"name{n}": f"value {n}, and some words of it " * 4 for n in range(20)}}
    body = orjson.dumps({"batch": [usual] * 2_500})
    assert 6 * 2**20 < len(body) <= 8 * 2**20
    assert large_json.MARK_BYTES * count_marks(body) < large_json.DOCUMENT_BYTES_MAX
    assert len(read(body)["batch"]) == 2_500


# ---- oversize


def test_item_that_is_too_large_as_sent_is_set_aside_and_its_batch_is_read() -> None:
    large = b'{"messageId":"1","writeKey":"s3cret","p":"%b"}' % (b"x" * AT_ONCE_BYTES)
    items = read(b'{"batch":[{"messageId":"0"}, %b ,{"messageId":"2"},5,%b]}' % (large, large))["batch"]
    assert [items[0], items[2], items[3]] == [{"messageId": "0"}, {"messageId": "2"}, 5]
    assert items[1] == items[4] == Oversize("1", large.replace(b"s3cret", b""), "s3cret")


@pytest.mark.regression("A large item held the loop beyond its turn.")
def test_work_on_a_large_item_is_charged_with_its_size() -> None:
    turns = Turns()
    large = event(1, text="x" * (AT_ONCE_BYTES + 1))

    asyncio.run(read_json(orjson.dumps({"batch": [event(0), large]}), LIMITS, turns))

    assert max(turns.sizes[1:]) > AT_ONCE_BYTES  # the first one is for looking at all of it


@pytest.mark.regression("A large item was counted, and the one before it freed, in the turn of other work.")
def test_large_item_is_counted_and_freed_in_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    large = orjson.dumps(event(1, text="x" * (AT_ONCE_BYTES // 2)))
    before: list[int] = []

    def counted(piece: bytes) -> bool:
        before.append(turns.sizes[-1])
        return is_cheap(piece)

    monkeypatch.setattr(large_json, "is_cheap", counted)
    asyncio.run(read_json(b"[%b,%b]" % (large, large), LIMITS, turns))
    assert before[1:] == [len(large)] * 2
    assert turns.sizes.count(len(large) // FREE_RATE) == 2


def test_single_event_that_is_too_large_as_sent_is_set_aside() -> None:
    large = b'{"messageId":"1","p":"%b"}' % (b"x" * AT_ONCE_BYTES)
    assert read(large) == Oversize("1", large)
    wide = JSONLimits(events_max=9, event_bytes_max=2 * AT_ONCE_BYTES)
    assert read(large, wide) == orjson.loads(large)


def test_event_that_is_not_parsed_has_the_key_at_its_top_level() -> None:
    many = b"[" + b"[1]," * 170_000 + b"1]"
    for form in (
        b'{"type":"x","writeKey":"k","a":%b}',
        b'{"a":%b,"type":"x","writeKey" : "k"}',
        b'{"b":{"writeKey":"no"},"a":%b,"writeKey":"\\u006b","c":{"writeKey":"no"}}',
        b'{"t":"' + b"x" * 50_000 + b'","writeKey":"k","a":%b}',
        b'{"t":"\\"writeKey\\":\\"no\\"","writeKey":"k","a":%b}',
    ):
        content = form % many
        for body, found in ((content, read(content)), (b"[%b]" % content, read(b"[%b]" % content)[0])):
            assert isinstance(found, Fragment), body[:80]
            assert (found.write_key, found.content) == ("k", content)
    for content in (b'{"b":{"writeKey":"no"},"a":%b}' % many, b'{"a":%b,"writeKey":5}' % many):
        assert read(content).write_key == ""
