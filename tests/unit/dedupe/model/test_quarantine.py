"""Quarantine: an event that is refused is kept, once, whole or with its head."""

import hashlib

import orjson
import pytest

from dedupe.model.identity import Identity
from dedupe.model.quarantine import KEPT_BYTES_MAX, Quarantine
from dedupe.model.types import Event, Topic

IDENTITY = Identity(b"a secret of 24 bytes....")
QUARANTINE = Quarantine(IDENTITY, Topic("quarantine", 4))
FINGERPRINT = b"\x07" * 8


def event_of(content: bytes, *, message_id: str = "id-1", fingerprint: bytes = FINGERPRINT) -> Event:
    return QUARANTINE.event(
        source="web", message_id=message_id, fingerprint=fingerprint, content=content, reason="conflict"
    )


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
    assert event.partition == int.from_bytes(event.key[:8], "big") % 4


def test_every_try_has_the_same_key_and_other_content_another() -> None:
    assert event_of(b'{"a":1}').key == event_of(b'{"a":1,"sentAt":2}').key
    assert event_of(b"{}", fingerprint=b"\x08" * 8).key != event_of(b"{}").key
    assert event_of(b"{}", message_id="").key != event_of(b"{}").key


@pytest.mark.parametrize("excess", [0, 1])
def test_event_too_long_keeps_its_head_length_and_hash(excess: int) -> None:
    content = b'"' + b"x" * (KEPT_BYTES_MAX - 2 + excess) + b'"'

    kept = orjson.loads(event_of(content).value)

    assert kept["truncated"] is bool(excess)
    assert kept["length"] == KEPT_BYTES_MAX + excess
    assert kept["sha256"] == hashlib.sha256(content).hexdigest()
    assert kept.get("head") == ('"' + "x" * (KEPT_BYTES_MAX - 1) if excess else None)
    assert kept.get("event") == (None if excess else "x" * (KEPT_BYTES_MAX - 2))


def test_character_cut_in_two_is_replaced() -> None:
    content = '"{}"'.format("x" * (KEPT_BYTES_MAX - 2) + "\u00fc").encode()

    kept = orjson.loads(event_of(content).value)

    assert kept["head"] == '"' + "x" * (KEPT_BYTES_MAX - 2) + "\ufffd"
