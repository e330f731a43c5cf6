"""Quarantine: what is refused is kept whole, once, in one record or in pieces."""

import hashlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.identity import Identity
from dedupe.model.quarantine import HEAD_BYTES_MAX, PIECE_BYTES, Quarantine
from dedupe.model.record import FLAG_PIECE, build_record, is_identified_by, parse_identity
from dedupe.model.types import Event, LogRecord, Topic

IDENTITY = Identity(b"a secret of 24 bytes....")
PARTITIONS = 4
WHOLE_BYTES_MAX = PIECE_BYTES + 1_000
QUARANTINE = Quarantine(IDENTITY, Topic("quarantine", PARTITIONS), WHOLE_BYTES_MAX)
FINGERPRINT = b"\x07" * 8


def events_of(
    content: bytes,
    *,
    message_id: str = "id-1",
    fingerprint: bytes = FINGERPRINT,
    position: int | None = None,
    is_json: bool = True,
) -> tuple[Event, ...]:
    return QUARANTINE.events(
        source="web",
        message_id=message_id,
        fingerprint=fingerprint,
        content=content,
        reason="conflict",
        position=position,
        is_json=is_json,
    )


def event_of(content: bytes, message_id: str = "id-1", fingerprint: bytes = FINGERPRINT) -> Event:
    (event,) = events_of(content, message_id=message_id, fingerprint=fingerprint)
    return event


def test_event_is_kept_whole() -> None:
    content = b'{"event":"paid","amount":12}'

    event = event_of(content)

    assert orjson.loads(event.value) == {
        "reason": "conflict",
        "truncated": False,
        "length": 28,
        "sha256": hashlib.sha256(content).hexdigest(),
        "event": {"event": "paid", "amount": 12},
    }
    assert event == Event(
        event.key, event.partition, FINGERPRINT, "web", "id-1", event.value, reason="conflict"
    )


def test_event_has_a_key_and_a_partition_of_its_own() -> None:
    event = event_of(b"{}")

    assert event.key == IDENTITY.quarantine_key("web", "id-1", FINGERPRINT)
    assert event.key != IDENTITY.message_key("web", "id-1")
    assert event.partition == int.from_bytes(event.key[:8], "big") % PARTITIONS


def test_every_try_has_the_same_key_and_other_content_another() -> None:
    assert event_of(b'{"a":1}').key == event_of(b'{"a":1,"sentAt":2}').key
    assert event_of(b"{}", fingerprint=b"\x08" * 8).key != event_of(b"{}").key
    assert event_of(b"{}", message_id="").key != event_of(b"{}").key


def test_bytes_that_are_no_json_are_kept_as_they_are() -> None:
    content = b'{"a":"\xff\n\x00'

    (event,) = events_of(content, position=17, is_json=False)

    head, kept = event.value.split(b"\n", 1)
    assert kept == content
    assert orjson.loads(head) == {
        "raw": True,
        "reason": "conflict",
        "length": 9,
        "sha256": hashlib.sha256(content).hexdigest(),
        "position": 17,
        "json": False,
        "piece": 0,
        "pieces": 1,
    }
    assert (event.key, event.fingerprint, event.flags) == (event_of(b"{}").key, FINGERPRINT, 0)


def test_the_same_bytes_at_another_position_are_stored_once() -> None:
    (first,), (second,) = (events_of(b"[", position=place, is_json=False) for place in (0, 9))
    assert first.key == second.key


@pytest.mark.parametrize("is_json", [True, False])
def test_only_what_exceeds_a_record_is_cut(is_json: bool) -> None:
    fits = b'"' + b"x" * (WHOLE_BYTES_MAX - 2) + b'"'
    assert len(events_of(fits, is_json=is_json)) == 1
    assert len(events_of(fits + b" ", is_json=is_json)) == 2


@given(
    length=st.integers(WHOLE_BYTES_MAX + 1, 4 * PIECE_BYTES),
    seed=st.binary(min_size=1, max_size=50),
    position=st.none() | st.integers(0, 2**40),
)
def test_pieces_are_the_whole_and_have_keys_of_their_own(
    length: int, seed: bytes, position: int | None
) -> None:
    content = (seed * (length // len(seed) + 1))[:length]

    pieces = events_of(content, position=position, is_json=False)

    heads, parts = zip(*(piece.value.split(b"\n", 1) for piece in pieces), strict=True)
    assert b"".join(parts) == content
    assert [orjson.loads(head)["piece"] for head in heads] == list(range(len(pieces)))
    assert {orjson.loads(head)["pieces"] for head in heads} == {len(pieces)}
    assert {orjson.loads(head)["sha256"] for head in heads} == {hashlib.sha256(content).hexdigest()}
    assert len({piece.key for piece in pieces}) == len(pieces)
    assert all(len(head) <= HEAD_BYTES_MAX for head in heads)
    assert [piece.flags for piece in pieces] == [0] + [FLAG_PIECE] * (len(pieces) - 1)
    assert events_of(content, position=position, is_json=False) == pieces
    others = events_of(content[:-1] + bytes([content[-1] ^ 1]), is_json=False)
    assert not {piece.key for piece in pieces} & {other.key for other in others}


def test_recovery_recognises_pieces_by_this_secret_alone() -> None:
    for piece in events_of(b"x" * (3 * PIECE_BYTES), message_id="", is_json=False):
        built = build_record(piece, lane_seq=3, timestamp_ms=1)
        record = LogRecord(7, *built)
        found = parse_identity(record)
        for identity, is_own in ((IDENTITY, True), (Identity(b"another secret of the test"), False)):
            assert is_own is is_identified_by(
                record, found, identity, partition=piece.partition, partitions=PARTITIONS
            )
