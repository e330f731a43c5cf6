"""Claim: what was quarantined is read as it was given, old records too; pieces give the whole, or why not."""

import hashlib
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.quarantine import PIECE_BYTES, OwnKey, Quarantine
from dedupe.model.record import build_record
from dedupe.model.types import Event, LogRecord, Topic
from dedupe.storage.quarantine_reader import Kept, Place, TextSearch, Whole, parse_kept, read_whole, shown
from tests.support.sim.sim_log import SimStore

TOPIC = Topic("events.quarantine", 3)
QUARANTINE = Quarantine(Identity(b"a secret of the tests"), TOPIC)
LONG = b"\xff[" * PIECE_BYTES + b"!"


def events_of(content: bytes, **options: Any) -> tuple[Event, ...]:
    given: dict[str, Any] = {"source": "web", "message_id": "m", "reason": "unreadable"}
    given |= {"fingerprint": fingerprint_of(content)} | options
    return QUARANTINE.events(content=content, **given)


def kept_of(event: Event, offset: int = 7) -> Kept:
    record = LogRecord(offset, *build_record(event, lane_seq=0, timestamp_ms=5))
    kept = parse_kept(record, event.partition)
    assert kept is not None
    return kept


@given(content=st.binary(max_size=2_000), position=st.none() | st.integers(0, 2**40))
def test_bytes_come_back_as_they_were(content: bytes, position: int | None) -> None:
    (event,) = events_of(content, position=position, is_json=False)
    kept = kept_of(event)
    assert (kept.content, kept.length, kept.head["position"]) == (content, len(content), position)
    assert (kept.is_json, kept.is_truncated, kept.pieces, Whole(kept).problem) == (False, False, 1, None)
    found = shown(kept, content)
    assert "event" in found or found == {"bytes": content.decode(errors="backslashreplace")}


def test_event_comes_back_with_the_place_of_its_original() -> None:
    clean = Event(b"k" * 16, 3, b"f" * 8, "web", "m", b'{"event":"x"}')
    (event,) = QUARANTINE.refused(clean, "conflict", 17)
    kept = kept_of(event)
    assert (kept.content, kept.original, kept.message_id) == (b'{"event":"x"}', Place(3, 17), "m")
    assert orjson.loads(orjson.dumps(shown(kept, kept.content))) == {"event": {"event": "x"}}
    assert event.key == events_of(clean.value, fingerprint=clean.fingerprint)[0].key
    for original in (None, -1):
        assert kept_of(QUARANTINE.refused(clean, "conflict", original)[0]).original is None


def test_record_of_an_earlier_version_is_read() -> None:
    """It has the first 64 KiB as text."""
    (event,) = events_of(b"{}")
    old = {"reason": "event_too_large", "truncated": True, "length": 70_000, "sha256": "ab", "head": '{"a":"'}
    kept = kept_of(event._replace(value=orjson.dumps(old)))
    assert (kept.is_truncated, kept.length, kept.pieces, kept.head.get("position")) == (True, 70_000, 1, None)
    raw = kept_of(events_of(b'{"a": 1}', is_json=False)[0])
    assert orjson.loads(orjson.dumps(shown(raw, raw.content))) == {"event": {"a": 1}}
    assert Whole(kept).problem == "only its first bytes are stored"
    assert orjson.loads(orjson.dumps(shown(kept, kept.content))) == {"head": '{"a":"'}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b'{"raw":true,',
        b'{"raw":true,}\n',
        b'{"raw":true,"reason":"x"}\nbytes',
        b'{"raw":true,' + b" " * 600 + b'"length":1,"sha256":""}\nx',
        b'{"reason":"x,"event":1}',
        b'{"reason":"x","event":1}',
    ],
)
def test_record_of_something_else_is_skipped(value: bytes) -> None:
    (event,) = events_of(b"{}")
    record = LogRecord(7, *build_record(event._replace(value=value), lane_seq=0, timestamp_ms=5))
    assert parse_kept(record, 0) is None


@given(extra=st.integers(0, 2 * PIECE_BYTES), seed=st.integers())
def test_pieces_in_any_order_give_the_whole(extra: int, seed: int) -> None:
    content = (b"\x00\xff\n" * PIECE_BYTES)[: PIECE_BYTES + 1 + extra]
    pieces = [kept_of(event) for event in events_of(content, is_json=False, position=4)]
    Random(seed).shuffle(pieces)
    whole = Whole(pieces[0])
    for number, piece in enumerate(pieces[1:], 1):
        assert whole.missing == sorted(other.piece for other in pieces[number:])
        assert "missing" in (whole.problem or "")
        whole.add(piece)
    assert (whole.content, whole.missing, whole.problem, whole.kept.piece) == (content, [], None, 0)
    whole.add(pieces[0])
    assert whole.content == content


def test_pieces_of_another_event_are_told_apart() -> None:
    first, *_ = [kept_of(event) for event in events_of(LONG, is_json=False)]
    _, *others = [kept_of(event) for event in events_of(LONG[::-1], is_json=False)]
    whole = Whole(first)
    with pytest.raises(ValueError, match="no piece"):
        whole.add(others[0])


def test_pieces_that_do_not_give_the_named_hash_are_said_to() -> None:
    first, second, *rest = [kept_of(event) for event in events_of(LONG, is_json=False)]
    whole = Whole(first)
    for piece in (second._replace(content=second.content[:-1] + b"!"), *rest):
        whole.add(piece)
    assert whole.missing == []
    assert "hash" in (whole.problem or "")


async def test_whole_is_found_from_any_of_its_pieces() -> None:
    store = SimStore()
    store.create_topic(TOPIC.name, TOPIC.partitions)
    places = []
    for event in (*events_of(LONG, is_json=False), *events_of(b"{}"), *events_of(LONG[:-1], is_json=False)):
        log = store.partition_log(TOPIC.name, event.partition)
        await log.fence()
        offset = await log.append([build_record(event, lane_seq=0, timestamp_ms=5)])
        places.append(Place(event.partition, offset))
    for place in places[:3]:
        whole = await read_whole(store, TOPIC.name, place)
        assert whole is not None
        assert (whole.problem, hashlib.sha256(whole.content).hexdigest()) == (
            None,
            hashlib.sha256(LONG).hexdigest(),
        )
    assert await read_whole(store, TOPIC.name, Place(0, 99)) is None


def test_pieces_with_other_write_keys_are_told_apart() -> None:
    pieces = [
        [kept_of(event) for event in events_of(LONG, is_json=False, own_key=own_key)]
        for own_key in (None, OwnKey(b"\xab" * 32, b""), OwnKey(b"\xcd" * 32, b""))
    ]
    assert len({kept.key for of_key in pieces for kept in of_key}) == 9
    assert [of_key[0].key_sha256 for of_key in pieces] == [None, "ab" * 32, "cd" * 32]
    assert len({of_key[0].whole_id for of_key in pieces}) == 3


@given(place=st.integers(PIECE_BYTES - 8, PIECE_BYTES + 8), text=st.sampled_from(["u-4711", "ü", 'a"b\n']))
def test_text_is_found_wherever_a_piece_ends(place: int, text: str) -> None:
    for spelled in (text.encode(), orjson.dumps(text)[1:-1]):
        content = b"x" * place + spelled + b"y" * PIECE_BYTES
        search = TextSearch(text)
        records = [kept_of(event) for event in (*events_of(content, is_json=False), *events_of(b"{}"))]
        assert [kept for record in records for kept in search.take(record)] == []
        assert [kept.piece for kept in search.rest()] == list(range(records[0].pieces))


def test_text_is_found_in_one_record_and_none_means_all() -> None:
    (kept, other) = (kept_of(events_of(content)[0]) for content in (b'{"u":"\\u00fc"}', b"{}"))
    search = TextSearch("ü")
    assert [*search.take(kept), *search.take(other), *search.rest()] == [kept]
    everything = TextSearch("")
    piece = kept_of(events_of(LONG, is_json=False)[1])
    assert [*everything.take(other), *everything.take(piece), *everything.rest()] == [other, piece]
