"""Claim: the headers of a record say where its event comes from, and are bounded."""

import json

from app.inputs.input_file import InputSpec
from app.inputs.origin import KEPT_BYTES_MAX, Origins
from dedupe.model.types import Headers, LogRecord

SPEC = {"name": "raw", "topic": "topic", "source": "web", "id": "key"}


def headers(spec: dict[str, object], record: Headers) -> Headers:
    origins = Origins(InputSpec.model_validate_json(json.dumps(SPEC | spec)))
    of_one = LogRecord(7, 1234, b"k", b"{}", record)
    found = origins.headers_of_each(3, [of_one, of_one, LogRecord(8, 1235, b"k", b"{}", [])])
    assert found[0] == found[1]
    assert not found[2] or found[2][0] == ("origin", b"raw:topic/3/8")
    return found[0]


def test_place_and_time_are_told_unless_they_are_not_wanted() -> None:
    assert headers({}, [("h", b"x")]) == [("origin", b"raw:topic/3/7"), ("origin-time", b"1234")]
    assert headers({"origin": False}, [("h", b"x")]) == []


def test_headers_are_kept_as_told_the_last_of_a_name_and_within_a_bound() -> None:
    spec: dict[str, object] = {"origin": False, "keep_headers": ["h", "long"]}
    record = [("h", b"1"), ("other", b"2"), ("long", bytes(KEPT_BYTES_MAX)), ("h", b"3")]
    assert headers(spec, record) == [("h", b"3")]
    fitting = ("long", bytes(KEPT_BYTES_MAX - len("long")))
    assert headers(spec, [fitting, ("h", b"3")]) == [fitting]
