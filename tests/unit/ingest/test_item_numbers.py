"""
Claim: however many numbers an event has that are spelled otherwise than orjson writes them, no piece of work
has more than a few; and in how many pieces they are read changes nothing.
"""

import asyncio
import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from app.ingest import item_numbers
from app.ingest.event_limits import STEP_BYTES, EventLimits
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.items import free
from app.ingest.large_json import JSONLimits
from app.ingest.parse import parse_events
from app.ingest.payload import Payload
from dedupe.model import json_document, json_number
from dedupe.model.identity import EQUAL_NUMBERS, Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Event, Topic

IDENTITY = Identity(b"a secret of 24 bytes....")
LIMITS = EventLimits(800 * 1024, 32, request_bytes_max=64 * 1024**2)
ARRIVAL = Arrival("web", 1_700_000_000_000)
RULES = (frozenset({"seen"}), frozenset({EQUAL_NUMBERS}))

READ_AT_ONCE = json_number.WORK_AT_ONCE // json_number.READ_WORK + 1
VALUES_AT_ONCE = json_number.WORK_AT_ONCE // json_number.VALUE_WORK + 1

KINDS = {
    "floats like integers": [b"10.0"] * 150_000,
    "others": [b"%d.0" % number for number in range(1_000, 90_000)],
    "powers of ten": [b"%de%d" % (number % 10, number % 3) for number in range(100_000)],
    "17 digits": [b"0.%d" % (10**16 + 7 * number) for number in range(39_000)],
    "30 digits": [b"%d" % (10**29 + 7 * number) for number in range(25_000)],
    "too large": [b"1e%d" % (400 + number) for number in range(90_000)],
}


def identifier() -> Identifier:
    quarantine = Quarantine(IDENTITY, Topic("q", 1))
    return Identifier(IDENTITY, 8, quarantine, LIMITS, earlier_ignore=RULES, random_bytes=bytes)


class Work:
    """Counts numbers that are read, and the turns of others between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, self.turns, self._count = 0, 0, 0
        parts_of, read = json_number.parts_of, json_number.Number.read

        def counted_parts_of(text: str) -> json_number.Parts:
            self._count += 1
            return parts_of(text)

        def counted_read(number: json_number.Number) -> json_number.Number:
            self._count += number.stored is UNSET
            return read(number)

        monkeypatch.setattr(json_number, "parts_of", counted_parts_of)
        monkeypatch.setattr(json_number.Number, "read", counted_read)

    async def turn(self, _size_bytes: int) -> None:
        self.most, self._count = max(self.most, self._count), 0
        self.turns += 1


async def identified(body: bytes, turn: Any) -> Identified:
    payload = await parse_events(body, JSONLimits(20_000, LIMITS.event_bytes_max), turn)
    found = Identified()
    items = identifier().identify(payload, ARRIVAL, lossy=found.lossy)
    while found.take(items, STEP_BYTES):
        await turn(STEP_BYTES)
    await turn(0)
    return found


async def no_turn(_size_bytes: int) -> None:
    """Go on at once."""


@pytest.mark.regression("One event of many numbers held up all other requests.")
@pytest.mark.parametrize("place", ["event", "batch", "beside", "refused", "no event", "wrapped"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_numbers_are_read_in_short_steps(kind: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = b",".join(KINDS[kind])
    body = {
        "event": b'{"messageId":"1","type":"track","p":[%b]}',
        "batch": b'[{"messageId":"0"},{"messageId":"1","type":"track","p":[%b]}]',
        "beside": b'{"context":{"p":[%b]},"batch":[{"messageId":"1"}]}',
        "refused": b'{"messageId":"1","type":5,"p":[%b]}',
        "no event": b"[[%b]]",
        "wrapped": b'[{"batch":[{"batch":[{"p":[%b]}]}]}]',
    }[place] % numbers
    work = Work(monkeypatch)
    found = asyncio.run(identified(body, work.turn))
    assert len(found.events) + len(found.rejections) >= 1
    assert work.most <= 9 * READ_AT_ONCE  # 8 short ones are read while one long one is
    if place in ("event", "beside"):
        assert work.turns >= len(KINDS[kind]) // VALUES_AT_ONCE


@pytest.mark.regression("Empty containers were no work, and very many held up all other requests.")
def test_empty_containers_are_looked_at_in_short_steps() -> None:
    count = 10 * VALUES_AT_ONCE
    reading = json_number.NumberReading([[]] * count)
    steps = sum(iter(reading.step, False))
    assert reading.work == json_number.VALUE_WORK * (2 * count + 1)  # found, and looked into
    assert steps >= 19


@pytest.mark.regression("Long batch-level fields were written in the step of the first event.")
def test_long_batch_level_fields_are_written_in_a_step_of_their_own() -> None:
    context = {"a": "x" * (STEP_BYTES + 1)}
    payload = Payload([{"messageId": "1"}], None, {"context": context})
    work, event = identifier().identify(payload, ARRIVAL)
    assert type(work) is int
    assert work > STEP_BYTES
    assert type(event) is Event


def spelled() -> st.SearchStrategy[str]:
    digits = st.text("0123456789", min_size=1, max_size=25)
    whole = digits.map(lambda text: text.lstrip("0") or "0")
    exponents = st.sampled_from(["", "", "e1", "E-2", "e+16", "e300", "e-300", "e400"])
    fraction = st.one_of(st.just(""), digits.map(".".__add__))
    return st.builds("".join, st.tuples(st.sampled_from(["", "-"]), whole, fraction, exponents))


def documents() -> st.SearchStrategy[str]:
    leaf = st.one_of(spelled(), st.sampled_from(['"a"', "null", "true", '"1.0"']))
    names = st.sampled_from(["p", "q", "seen", "sentAt", "context", "type", "messageId", "writeKey", "event"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]"),
            st.lists(st.tuples(names, inner), max_size=4, unique_by=lambda pair: pair[0]).map(
                lambda pairs: "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
            ),
        ),
        max_leaves=12,
    )


@contextmanager
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (json_number, json_document, item_numbers):
            patch.setattr(module, "WORK_AT_ONCE", 1)
        json_document._floats.clear()
        yield


def compared(events: Sequence[Event]) -> list[tuple[Event, set[bytes]]]:
    """Return events with the set of their fingerprints, which may be named twice."""
    return [
        (event._replace(earlier_fingerprints=()), {event.fingerprint, *event.earlier_fingerprints})
        for event in events
    ]


@given(st.lists(documents(), min_size=1, max_size=4), documents())
def test_events_are_the_same_however_their_numbers_are_read(items: list[str], context: str) -> None:
    events = ",".join(f'{{"messageId":"{index}","p":{item}}}' for index, item in enumerate(items))
    body = f'{{"context":{{"c":{context}}},"batch":[{events},{",".join(items)}]}}'.encode()
    plain = asyncio.run(identified(body, no_turn))
    with small_steps():
        in_steps = asyncio.run(identified(body, no_turn))
    assert compared(in_steps.events) == compared(plain.events)
    assert in_steps.rejections == plain.rejections
    assert in_steps.lossy == plain.lossy
    alone = [
        asyncio.run(identified(b'{"context":{"c":%b},"batch":[%b]}' % (context.encode(), each), no_turn))
        for each in (
            b'{"messageId":"%d","p":%b}' % (index, item.encode()) for index, item in enumerate(items)
        )
    ]
    assert compared([event for found in alone for event in found.events]) == compared(
        plain.events[: len(items)]
    )


class Item:
    """Something that tells when it is freed."""


@pytest.mark.regression("The end of a large body held up all other requests.")
def test_items_of_a_large_body_are_freed_in_steps() -> None:
    items: list[object] = [Item() for _ in range(100)]
    living = weakref.WeakSet(items)
    left: list[int] = []

    async def turn(_size_bytes: int) -> None:
        gc.collect()
        left.append(len(living))

    asyncio.run(free(items, 8 * 1024**2, turn))
    assert left[0] == 100
    assert not living
    assert max(before - after for before, after in zip(left, [*left[1:], 0], strict=True)) <= 10
