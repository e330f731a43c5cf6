"""Claim: an event is of a person by three fields, and what is left of it names nobody, for any record."""

from datetime import UTC, date, datetime
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from dedupe.model.record import FLAG_CHECKSUM, FLAG_CLOUDEVENT
from pipeline.errors import PipelineError, UsageError
from pipeline.runtime.erasures import ErasureList
from pipeline.schema import ARCHIVE, LATER_COLUMNS, RECORD
from pipeline.transforms.erased import (
    IdKind,
    Persons,
    erased_archive,
    erased_records,
    in_archive,
    in_sessions,
    in_table,
    is_erased,
    without_erased,
)

KEY = b"k" * 32
NOBODY = Persons(KEY, frozenset())
PERSONS = Persons(
    KEY,
    frozenset({NOBODY.hash_of(IdKind.USER, "u-1"), NOBODY.hash_of(IdKind.ANONYMOUS, "a-1")})
    | {NOBODY.hash_of(IdKind.USER, "7")},
)
GW = bytes([1, FLAG_CHECKSUM]) + bytes(32) + b"crc!"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

OWN: list[dict[str, Any]] = [
    {"userId": "u-1"},
    {"anonymousId": "a-1", "userId": "other"},
    {"type": "alias", "previousId": "u-1", "userId": "new"},
    {"type": "alias", "previousId": "a-1"},
    {"userId": 7},
    {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"userId": "u-1"}},
]
OTHERS: list[dict[str, Any]] = [
    {"userId": "a-1"},
    {"anonymousId": "u-1"},
    {"userId": "U-1"},
    {"userId": None, "properties": {"userId": "u-1"}, "data": {"userId": "u-1"}},
    {"userId": {"u-1": 1}},
    {},
]


def record(value: bytes, gw: bytes | None = GW) -> dict[str, Any]:
    return {
        "topic": "events",
        "partition": 0,
        "offset": 1,
        "timestamp": NOON,
        "key": b"id",
        "source": "web",
    } | {
        "value": value,
        "gw": gw,
    }


def records(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), to_arrow_schema(RECORD))


@pytest.mark.parametrize("event", OWN)
def test_events_of_a_person_are_theirs(event: dict[str, Any]) -> None:
    assert PERSONS.own(event)
    assert not NOBODY.own(event)


@pytest.mark.parametrize("event", OTHERS)
def test_events_of_others_are_not(event: dict[str, Any]) -> None:
    assert not PERSONS.own(event)


def test_what_is_left_names_nobody_and_is_left_as_it_is_when_erased_again() -> None:
    flags = FLAG_CHECKSUM | FLAG_CLOUDEVENT
    cloudevent = record(orjson.dumps(OWN[-1]), bytes([1, flags]) + GW[2:])
    batch = records(
        record(b'{"messageId":"id","type":"track","userId":"u-1","properties":{"a":"secret"}}'),
        cloudevent,
        record(b'{"userId":"other"}'),
        record(b"no JSON", None),
    )

    (once,) = erased_records(PERSONS, [batch])
    (again,) = erased_records(PERSONS, [once])

    assert again == once
    assert once.schema == batch.schema
    rows, before = once.to_pylist(), batch.to_pylist()
    assert [row["value"] for row in rows] == [
        b'{"messageId":"id","type":"track","erased":true}',
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","erased":true}',
        before[2]["value"],
        before[3]["value"],
    ]
    assert [row["gw"] for row in rows] == [
        bytes([1, 0]) + bytes(32),
        bytes([1, FLAG_CLOUDEVENT]) + bytes(32),
        GW,
        None,
    ]
    marks = [is_erased(orjson.loads(row["value"]), row["gw"]) for row in rows[:3]]
    assert marks == [True, True, False]
    assert not is_erased({"erased": True}, GW)  # a client's own word, under a checksum
    (left,) = without_erased(PERSONS, [once])
    assert left.to_pylist() == rows[2:]


def test_a_row_of_an_archive_is_as_archive_computes_it_of_what_is_left() -> None:
    value = orjson.dumps({"messageId": "id", "type": "page", "userId": "u-1"}).decode()
    full: dict[str, Any] = {
        name: "x" for name in ("message_id", "event", "user_id", "anonymous_id", "properties", *LATER_COLUMNS)
    }
    full |= {"topic": "t", "partition": 0, "offset": 1, "timestamp": NOON, "type": "page", "value": value}
    full |= {
        "gw": GW,
        "gs": b"s",
        "event_time": NOON,
        "sent_at": NOON,
        "day": date(2025, 1, 1),
        "dt": "2026-01-01",
        "hr": "12",
    }
    rows = pa.RecordBatch.from_pylist([full], to_arrow_schema(ARCHIVE))
    assert in_archive(PERSONS, rows).tolist() == [True]

    (row,) = erased_archive(rows, [orjson.loads(value)]).to_pylist()

    columns = ("event", "user_id", "anonymous_id", "properties", "event_time", "value_bytes", *LATER_COLUMNS)
    emptied = dict.fromkeys(columns)
    left = '{"messageId":"x","type":"page","erased":true}'
    assert row == rows.to_pylist()[0] | emptied | {
        "value": left,
        "gw": bytes([1, 0]) + bytes(32),
        "day": date(2026, 1, 1),
    }


def test_rows_of_tables_and_sessions_are_found_by_their_columns() -> None:
    table = {"user_id": ["u-1", "x", None], "anonymous_id": ["x", None, "a-1"], "total": [1, 2, 3]}
    assert in_table(PERSONS, pa.RecordBatch.from_pydict(table)).tolist() == [True, False, True]
    others = {"value": ['{"userId":"u-1"}', "{}"]}
    assert in_table(PERSONS, pa.RecordBatch.from_pydict(others)).tolist() == [True, False]
    sessions = {"user": ["u-1", "x", "a-1"], "visitor": ["x", "y", "a-1"]}
    assert in_sessions(PERSONS, pa.RecordBatch.from_pydict(sessions)).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("path", "key"), [("list", None), (None, "key"), ("list", "short"), ("list", "none")]
)
def test_a_list_without_a_good_key_is_refused(path: str | None, key: str | None, tmp_path: Any) -> None:
    (tmp_path / "short").write_text("x" * 31)
    with pytest.raises(UsageError):
        ErasureList.of(path, None if key is None else str(tmp_path / key))


def test_a_list_of_another_key_is_refused(tmp_path: Any) -> None:
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "key.0123456789abcdef").touch()
    with pytest.raises(PipelineError, match="another key"):
        ErasureList(str(tmp_path / "list"), KEY).local_persons()
