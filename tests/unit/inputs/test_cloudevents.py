"""Claim: records of CloudEvents' Kafka binding are the events of the HTTP binding, and nothing is lost."""

import json

import pytest

from app.ingest.items import Fragment
from app.ingest.large_json import JSONLimits
from app.inputs.cloudevents import is_empty, payload_of
from dedupe.model.types import Headers, LogRecord

EVENT = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}
ATTRIBUTES: Headers = [(f"ce_{name}", text.encode()) for name, text in EVENT.items()]


async def yield_to_nobody(_work_bytes: int) -> None:
    """Nobody else is there."""


async def items_of(value: bytes, headers: Headers) -> list[object]:
    record = LogRecord(7, 1, b"k", value, headers)
    return (await payload_of(record, JSONLimits(3, 10_000), yield_to_nobody)).items


@pytest.mark.parametrize(
    "content_type", ["application/cloudevents+json; charset=UTF-8", "application/json", ""]
)
async def test_structured_event_is_its_value(content_type: str) -> None:
    headers = [("content-type", content_type.encode())] if content_type else []
    assert await items_of(json.dumps(EVENT).encode(), headers) == [EVENT]


async def test_array_is_a_batch() -> None:
    headers = [("content-type", b"application/cloudevents-batch+json")]
    assert await items_of(json.dumps([EVENT, EVENT | {"id": "2"}]).encode(), headers) == [
        EVENT,
        EVENT | {"id": "2"},
    ]


@pytest.mark.parametrize(
    ("content_type", "value", "more"),
    [
        ("application/json", b'{"a":1}', {"datacontenttype": "application/json", "data": {"a": 1}}),
        ("text/plain", b"hello", {"datacontenttype": "text/plain", "data_base64": "aGVsbG8="}),
        (
            "application/avro",
            b"\0\0\0\0\1",
            {"datacontenttype": "application/avro", "data_base64": "AAAAAAE="},
        ),
        ("", b"", {}),
    ],
)
async def test_binary_event_has_attributes_in_headers(
    content_type: str, value: bytes, more: dict[str, object]
) -> None:
    types = [("content-type", content_type.encode())] if content_type else []
    assert await items_of(value, ATTRIBUTES + types) == [EVENT | more]


async def test_attribute_is_utf_8_and_not_decoded_further() -> None:
    (item,) = await items_of(b"", [*ATTRIBUTES, ("ce_subject", "ä %41".encode())])
    assert item == EVENT | {"subject": "ä %41"}


@pytest.mark.parametrize("header", [("ce_id", b"2"), ("ce_subject", b"\xff")])
async def test_damaged_attribute_keeps_the_event_whole(header: tuple[str, bytes]) -> None:
    (kept,) = await items_of(b"data", [*ATTRIBUTES, header])
    assert isinstance(kept, Fragment)
    assert kept.reason == "unreadable"
    assert kept.content.endswith(b"\r\n\r\ndata")


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (b"\0\0\0\0\1avro", [], "schema_encoded"),
        (b'{"id"', [], "unreadable"),
        (b"avro", [("content-type", b"application/cloudevents+avro")], "unreadable"),
    ],
)
async def test_what_is_no_event_is_kept_whole(value: bytes, headers: Headers, reason: str) -> None:
    assert await items_of(value, headers) == [Fragment(0, value, reason)]


def test_only_a_record_without_attributes_is_empty() -> None:
    assert is_empty(LogRecord(7, 1, b"k", b"", []))
    assert not is_empty(LogRecord(7, 1, b"k", b"", ATTRIBUTES))
