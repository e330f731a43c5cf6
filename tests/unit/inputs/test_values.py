"""Records of an input become items by its format and its rule of ids; what is no event is kept whole."""

import json

import pytest

from app.ingest.items import Fragment
from app.ingest.large_json import JSONLimits
from app.inputs.admission import CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX, chunks_of
from app.inputs.input_file import InputSpec
from app.inputs.values import Topic, Values
from dedupe.model.types import LogRecord


def values_of(topic_id: str = "t1", **fields: object) -> Values:
    spec = {"name": "raw", "topic": "raw", "source": "web", "id": {"field": "messageId"}} | fields
    return Values(InputSpec.model_validate(spec), Topic("c1", topic_id), JSONLimits(100, 10_000))


def record(value: object, *, offset: int = 7, key: bytes = b"", **headers: bytes) -> LogRecord:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return LogRecord(offset, 1, key, content, list(headers.items()))


def items_of(values: Values, *records: LogRecord) -> list[object]:
    return [item for read in values.read(3, records) for item in read.payload.items]


def ids_of(values: Values, *records: LogRecord) -> list[object]:
    return [
        item.reason if isinstance(item, Fragment) else item["messageId"]  # type: ignore[index]
        for item in items_of(values, *records)
    ]


def test_place_names_the_topic_by_its_id() -> None:
    assert ids_of(values_of(id="place"), record({"event": "A"})) == ["c1:t1:3:7"]
    assert ids_of(values_of("t2", id="place"), record({"event": "A"})) == ["c1:t2:3:7"]
    batch = record([{"event": "A"}, {"event": "B"}])
    assert ids_of(values_of(id="place", format="batch"), batch) == ["c1:t1:3:7:0", "c1:t1:3:7:1"]
    lines = record(b'{"event":"A"}\n\n{"event":"B"}\n')
    assert ids_of(values_of(id="place", format="ndjson"), lines) == ["c1:t1:3:7:0", "c1:t1:3:7:1"]


def test_each_rule_finds_its_own_id_alone() -> None:
    full = record({"event": "A", "eventId": 5}, key=b"k", h=b"x")
    assert ids_of(values_of(id={"field": "eventId"}), full) == ["5"]
    assert ids_of(values_of(id={"header": "h"}), full) == ["x"]
    assert ids_of(values_of(id="key"), full) == ["k"]
    bare = record({"event": "A"})
    for rule in ({"field": "eventId"}, {"field": "messageId"}, {"header": "h"}, "key"):
        assert ids_of(values_of(id=rule), bare) == ["message_id_invalid"]
    assert ids_of(values_of(id="key"), record({"event": "A"}, key=b"\xff")) == ["message_id_invalid"]


def test_another_id_of_its_own_is_not_written_over() -> None:
    other = record({"event": "A", "messageId": "own"}, key=b"k")
    (kept,) = items_of(values_of(id="key"), other)
    assert kept == Fragment(0, other.value, "message_id_invalid")
    assert ids_of(values_of(id="key"), record({"event": "A", "messageId": "k"}, key=b"k")) == ["k"]


@pytest.mark.parametrize("event_format", ["event", "batch", "ndjson"])
@pytest.mark.parametrize(
    ("value", "reason"), [(b"\0\0\0\0\1avro", "schema_encoded"), (b'{"messageId"', "unreadable")]
)
def test_what_is_no_event_is_kept_whole(event_format: str, value: bytes, reason: str) -> None:
    (kept,) = items_of(values_of(format=event_format), record(value))
    assert kept == Fragment(0, value, reason)


def test_more_that_is_no_event() -> None:
    wrapped = {"batch": [{"messageId": "a", "type": "track"}]}
    assert ids_of(values_of(id="place"), record(wrapped)) == ["unreadable"]
    assert ids_of(values_of(id="place"), record([1])) == ["not_an_object"]
    assert ids_of(values_of(format="batch"), record({"event": "A"})) == ["unreadable"]
    assert ids_of(values_of(format="batch"), record([{}] * 101)) == ["too_many_events"]
    assert items_of(values_of(), record(b"")) == []


def test_chunks_are_bounded_and_complete() -> None:
    small = [record(b"{}", offset=number) for number in range(CHUNK_RECORDS_MAX + 1)]
    assert [len(chunk) for chunk in chunks_of(small)] == [CHUNK_RECORDS_MAX, 1]
    large = [record(bytes(CHUNK_BYTES_MAX + 1)), record(b"{}"), record(bytes(CHUNK_BYTES_MAX)), record(b"{}")]
    assert [len(chunk) for chunk in chunks_of(large)] == [1, 1, 1, 1]
    assert list(chunks_of([])) == []
