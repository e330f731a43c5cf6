"""Claim: a record of a routing topic counts only where it was written, and says what it said for ever."""

from typing import Any

import orjson
import pytest

from dedupe.decide.lineage import Mark
from dedupe.decide.resharding import Decision, Marking, Move, Plan
from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.types import LogRecord, NewRecord
from dedupe.storage.routing_records import (
    HEADER_MAC,
    Close,
    Note,
    Notes,
    Place,
    close_record,
    decision_record,
    mac_key_of,
    marking_record,
    note_record,
    plan_record,
    read_record,
    routing_topic_of,
)

KEY = mac_key_of(Identity(b"a secret of this deployment"))
HERE = Place("cluster-1", bytes(range(16)), 0)
GOLDEN_KEY = "924c826f7ad899d90817553b49df6412b6b4777ce6a7e863f22dc930ae41b9c7"
GOLDEN_MAC = "01db8b85d3bf78708bd9f89850dbcbf404"
NOTE = Note("pin", "events", 0, '{"partitions":8}', once=True)


def at(offset: int, record: NewRecord) -> LogRecord:
    return LogRecord(offset, *record)


CUT = Decision(1, 3, 7_123_456, 1_795_600_000_000, 7_100_012, 7_123_454, b"\x9f" * 16)
KEEP = Decision(1, 4, None)
GROWTH = Plan(2, 16, (Move(256, 511, 0, 8), Move(768, 1023, 1, 9)), (CUT, KEEP))
CUT_TEXT = (
    b'"last_key":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","last_offset":7123454,"offset":7123456,"partition":3,'
    b'"plan":1,"timestamp_ms":1795600000000'
)
MARKS = (Mark(0, 7_123_456, 7_100_012, 1_795_600_000_000), Mark(8, 12, 9, 1_795_600_000_001))
MERGE = Plan(3, 16, (Move(256, 511, 8, 0),), (), 1_795_500_000_000, MARKS)
MARKING = Marking(3, MARKS[:1], is_last=True)
SAYINGS: list[tuple[object, NewRecord, tuple[str, bytes]]] = [
    (
        CUT,
        decision_record(CUT, HERE, KEY, now_ms=1),
        ("cut", b'{"kind":"cut","lane_seq":7100012,' + CUT_TEXT + b',"v":1}'),
    ),
    (
        KEEP,
        decision_record(KEEP, HERE, KEY, now_ms=1),
        ("keep", b'{"kind":"keep","partition":4,"plan":1,"v":1}'),
    ),
    (Close(2), close_record(Close(2), HERE, KEY, now_ms=1), ("close", b'{"kind":"close","plan":2,"v":1}')),
    (
        GROWTH,
        plan_record(GROWTH, HERE, KEY, now_ms=1),
        (
            "plan",
            b'{"before":[{"lane_seq":7100012,' + CUT_TEXT + b'},{"partition":4,"plan":1}],"kind":"plan",'
            b'"moves":[[256,511,0,8],[768,1023,1,9]],"number":2,"partitions":16,"v":1}',
        ),
    ),
    (
        MERGE,
        plan_record(MERGE, HERE, KEY, now_ms=1),
        (
            "plan",
            b'{"before":[],"kind":"plan","marks":[[0,7123456,7100012,1795600000000],[8,12,9,1795600000001]],'
            b'"moves":[[256,511,8,0]],"number":3,"partitions":16,"read_from_ms":1795500000000,"v":2}',
        ),
    ),
    (
        MARKING,
        marking_record(MARKING, HERE, KEY, now_ms=1),
        (
            "mark",
            b'{"is_last":true,"kind":"mark","marks":[[0,7123456,7100012,1795600000000]],"plan":3,"v":2}',
        ),
    ),
]


def test_golden_record() -> None:
    """Frozen: what was written is read by every later version."""
    record = note_record(NOTE, HERE, KEY, now_ms=1_700_000_000_000)

    assert record.key == b"note"
    assert record.value == (
        b'{"kind":"note","name":"pin","once":true,"partition":0,"text":"{\\"partitions\\":8}",'
        b'"topic":"events","v":1}'
    )
    assert [(name, value.hex()) for name, value in record.headers] == [("gr", GOLDEN_MAC)]
    assert KEY.hex() == GOLDEN_KEY
    assert routing_topic_of("events") == "events.routing"


@pytest.mark.parametrize(("said", "record", "value"), SAYINGS, ids=[said[0] for *_, said in SAYINGS])
def test_what_was_written_is_read(said: object, record: NewRecord, value: tuple[str, bytes]) -> None:
    """The values are frozen."""
    assert (record.key.decode(), record.value) == value
    assert read_record(at(7, record), [HERE._replace(topic_id=bytes(16)), HERE], KEY) == said


@pytest.mark.parametrize(
    "there",
    [
        HERE._replace(log_id="cluster-2"),
        HERE._replace(topic_id=bytes(16)),
        HERE._replace(partition=1),
    ],
)
def test_record_of_elsewhere_is_refused(there: Place) -> None:
    record = at(7, note_record(NOTE, there, KEY, now_ms=1))

    with pytest.raises(IdentityMismatchError, match="offset 7 of the routing topic"):
        read_record(record, [HERE], KEY)


def test_record_of_another_secret_is_refused() -> None:
    other = mac_key_of(Identity(b"a secret of another one"))

    with pytest.raises(IdentityMismatchError, match="GATEWAY_IDENTITY_SECRET"):
        read_record(at(0, note_record(NOTE, HERE, other, now_ms=1)), [HERE], KEY)


@pytest.mark.parametrize(
    "change",
    [
        {"value": b'{"kind":"note","v":1}'},
        {"key": b"plan"},
        {"headers": []},
        {"headers": [(HEADER_MAC, None)]},
        {"headers": [(HEADER_MAC, b"\1")]},
    ],
    ids=str,
)
def test_record_that_somebody_changed_is_refused(change: dict[str, Any]) -> None:
    record = at(0, note_record(NOTE, HERE, KEY, now_ms=1))

    with pytest.raises(IdentityMismatchError):
        read_record(record._replace(**change), [HERE], KEY)


def test_record_of_a_later_version_asks_for_the_newer_gateway() -> None:
    record = at(3, note_record(NOTE, HERE, KEY, now_ms=1))

    with pytest.raises(IdentityMismatchError, match="run that one"):
        read_record(record._replace(headers=[(HEADER_MAC, b"\3" + bytes(16))]), [HERE], KEY)


def test_plans_that_older_gateways_cannot_follow_are_of_a_later_version() -> None:
    growth = Plan(1, 4, (Move(0, 3, 0, 2),))
    merge = growth._replace(read_from_ms=1_700_000_000_000)

    used = growth._replace(empty_until=((2, 7),))

    for plan, version in ((growth, 1), (merge, 2), (used, 2)):
        record = at(3, plan_record(plan, HERE, KEY, now_ms=1))
        assert (record.headers[0][1] or b"")[0] == orjson.loads(record.value)["v"] == version
        assert read_record(record, [HERE], KEY) == plan


def test_later_note_takes_the_place_of_an_earlier_one() -> None:
    notes = Notes()
    for text in ("old", "new"):
        notes.add(Note("skips", "events", 1, text))
    notes.add(Note("skips", "events.quarantine", 1, "other"))

    assert notes.of("skips", "events") == {1: "new"}


def test_of_notes_that_are_written_once_the_first_counts() -> None:
    notes = Notes()
    for text in ("first", "second"):
        notes.add(Note("pin", "events", 0, text, once=True))

    assert notes.of("pin", "events") == {0: "first"}
