"""Claim: a duplicate is proved by its original alone: by key or secondary key, content and checksum."""

from dataclasses import replace

import pytest

from dedupe.decide.proof import sample_of, why_disproved
from dedupe.decide.recovery import RecordCheck
from dedupe.model.identity import Identity
from dedupe.model.record import build_record
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, LogRecord, Session

IDENTITY = Identity(b"a secret of 24 characters")
PARTITIONS = 1
CHECK = RecordCheck(IDENTITY, 0, PARTITIONS)
OFFSET = 17
SESSION = Session(IDENTITY.client_hash("web", "phone"), IDENTITY.session_hash("web", "phone", "one"), 3)


def event(message_id: str = "a", fingerprint: bytes = b"8 bytes.") -> Event:
    key = IDENTITY.message_key("web", message_id)
    return Event(key, partition_of(key, PARTITIONS), fingerprint, "web", message_id, b'{"type":"track"}')


def session_event(sequence: int, message_id: str) -> Event:
    session = SESSION._replace(sequence=sequence)
    key = IDENTITY.sequence_key(session.client_hash, session.session_hash, sequence)
    secondary_key = IDENTITY.secondary_key("web", session.client_hash, message_id)
    return event(message_id)._replace(key=key, session=session, secondary_key=secondary_key)


def record_of(original: Event) -> LogRecord:
    return LogRecord(OFFSET, *build_record(original, lane_seq=4, timestamp_ms=1_000))


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        (event(), event()),
        (event(fingerprint=b"by rules")._replace(earlier_fingerprints=(b"8 bytes.",)), event()),
        (session_event(3, "a"), session_event(3, "a")),
        (session_event(9, "a"), session_event(3, "a")),
    ],
    ids=["event", "earlier-rules", "session", "message-id-in-another-sequence"],
)
def test_original_proves_its_copy(copy: Event, original: Event) -> None:
    assert why_disproved(sample_of(copy, OFFSET), record_of(original), CHECK) is None


@pytest.mark.parametrize(
    ("copy", "original", "why"),
    [
        (event("b"), event("a"), "another event"),
        (event(), event(fingerprint=b"another."), "other content"),
        (session_event(3, "b"), session_event(4, "a"), "another event"),
        (event("a"), session_event(3, "a"), "another event"),
    ],
    ids=["event", "content", "session", "event-of-no-session"],
)
def test_another_record_disproves_a_copy(copy: Event, original: Event, why: str) -> None:
    said = why_disproved(sample_of(copy, OFFSET), record_of(original), CHECK)

    assert said is not None
    assert why in said


def test_missing_changed_and_foreign_records_disprove_a_copy() -> None:
    sample, record = sample_of(event(), OFFSET), record_of(event())
    foreign = replace(CHECK, identity=Identity(b"another secret of 32 characters."))

    assert "no record" in (why_disproved(sample, None, CHECK) or "")
    assert "checksum" in (why_disproved(sample, record._replace(value=b'{"type":"trick"}'), CHECK) or "")
    assert "GATEWAY_IDENTITY_SECRET" in (why_disproved(sample, record, foreign) or "")
