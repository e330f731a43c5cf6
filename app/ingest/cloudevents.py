"""
Parses messages of CloudEvents' bindings (HTTP 1.0.2, Kafka 1.0.2) into items that are CloudEvents in JSON.

    structured, batched    the body is the event, or an array of events
    binary                 the body is the data; attributes are headers (ce-id over HTTP, ce_id over Kafka)

A caller takes the attributes from its headers, by `attributes_in` (HTTP) or as UTF-8 text (Kafka), and gets
its parser from `parser_of`. The items go to Identifier.identify with CLOUDEVENTS as `Arrival.dialect`, which
checks each: an item that is no CloudEvent is quarantined whole, and is no error of its message.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from urllib.parse import unquote

import msgspec
import orjson

from app.http.errors import InvalidJSONError
from app.http.fair_scheduler import YieldToOthers
from app.ingest.items import Fragment
from app.ingest.large_json import SMALL_BYTES, JSONLimits
from app.ingest.parse import Parse, parse_cloudevents
from app.ingest.payload import Payload
from dedupe.decide.rejection import RejectionCode
from dedupe.model.cloudevent import DATA, DATA_BASE64, DATA_TYPE, may_be_json, media_type

MEDIA_TYPE = "application/cloudevents"
BATCH_MEDIA_TYPE = "application/cloudevents-batch"
JSON_FORMATS = frozenset(
    f"{mode}{suffix}" for mode in (MEDIA_TYPE, BATCH_MEDIA_TYPE) for suffix in ("", "+json")
)
"""The media types of bodies that are read; other formats, such as Avro, are quarantined as they are."""

HTTP_PREFIX = b"ce-"
DATA_FIELDS = frozenset({DATA, DATA_BASE64})
"""Names that no attribute has: an attribute of that name keeps the prefix."""

IDENTITY = frozenset({"id", "source"})

_ESCAPED = re.compile(r"\\(.)")
_raw_json = msgspec.json.Decoder(msgspec.Raw).decode


class Attributes(dict[str, str]):
    """The attributes of a message in binary mode, by name without prefix; empty in other modes."""

    is_damaged = False
    """Whether one is no text: it could be equal to that of another event, so its event is quarantined."""


def attributes_in(headers: Mapping[bytes, bytes]) -> Attributes:
    """
    Return the attributes in the headers of a request.

    Args:
        headers: by lower-case name. A value may be in quotes, and is decoded from percent-encoding once.
    """
    found = Attributes()
    for name, value in headers.items():
        if name.startswith(HTTP_PREFIX):
            attribute = name[len(HTTP_PREFIX) :].decode("latin-1")
            try:
                found[attribute] = header_text(value, is_identity=attribute in IDENTITY)
            except ValueError:
                found[attribute], found.is_damaged = value.decode(errors="surrogateescape"), True
    return found


def header_text(value: bytes, *, is_identity: bool) -> str:
    """
    Return the text of an attribute's header, which has percent-encoded UTF-8.

    The SDK for JavaScript encodes nothing, and Node then writes Latin-1. It is read where it cannot make two
    events one: not in what identifies an event.

    Raises ValueError: it is no text.
    """
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        if is_identity:
            raise
        text = value.decode("latin-1").strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = _ESCAPED.sub(r"\1", text[1:-1])
    return unquote(text, errors="strict")


def parser_of(content_type: str, attributes: Attributes) -> Parse:
    """
    Return the parser of one message, by its mode.

    Its content type decides, and where that names no mode, whether it has attributes. A message of neither is
    read as structured or batched, since clients get content types wrong.

    Args:
        content_type: "" without any.
        attributes: those of its headers.

    Returns:
        A parser of the message's body, inflated, into a Payload. It raises BodyMemoryFullError (see
        JSONLimits.hold). Only `parse_cloudevents`, that of structured and batched bodies, also raises
        InvalidJSONError and BatchMissingError: app.ingest.salvaged then finds the events that are whole.
    """
    if is_binary(content_type, attributes):
        if attributes.is_damaged:
            return partial(parse_damaged, content_type=content_type, attributes=attributes)
        return partial(_parse_binary, content_type=content_type, attributes=attributes)
    kind = media_type(content_type)
    is_other = kind.startswith(MEDIA_TYPE) and kind not in JSON_FORMATS
    return _parse_other_format if is_other else parse_cloudevents


def is_binary(content_type: str, attributes: Mapping[str, str]) -> bool:
    """Whether a message with these is in binary mode, its body the data."""
    return bool(attributes) and not media_type(content_type).startswith(MEDIA_TYPE)


def binary_document(attributes: Mapping[str, str], content_type: str, data: bytes, *, is_json: bool) -> bytes:
    """
    Return the JSON of a CloudEvent in binary mode.

    Args:
        attributes: as in `parser_of`.
        content_type: that of the data, "" if unknown.
        data: b"" for none.
        is_json: whether `data` is written as it is, else as `data_base64`.
    """
    fields = {f"ce-{name}" if name in DATA_FIELDS else name: text for name, text in attributes.items()}
    if content_type:
        fields[DATA_TYPE] = content_type
    head = orjson.dumps(fields)[:-1]
    if not data:
        return head + b"}"
    return b'%b,"data":%b}' % (head, data) if is_json else b'%b,"data_base64":"%b"}' % (head, b64encode(data))


def is_json(data: bytes) -> bool:
    """Whether data are one JSON document in UTF-8, in the strict sense."""
    try:
        data.decode()
        _raw_json(data)  # alone: or else data could end the object that they become a field of
    except (ValueError, RecursionError):
        return False
    return True


async def _parse_binary(
    body: bytes,
    limits: JSONLimits,
    yield_to_others: YieldToOthers,
    *,
    content_type: str,
    attributes: Mapping[str, str],
) -> Payload:
    if len(body) > SMALL_BYTES:
        limits.hold(len(body), len(body) + len(body) // 2)  # of base64; then parsing charges anew
    await yield_to_others(len(body))
    if may_be_json(content_type) and is_json(body):
        document = binary_document(attributes, content_type, body, is_json=True)
        with suppress(InvalidJSONError):
            return await parse_cloudevents(document, limits, yield_to_others)
    document = binary_document(attributes, content_type, body, is_json=False)
    return await parse_cloudevents(document, limits, yield_to_others)


async def parse_damaged(
    body: bytes,
    _limits: JSONLimits,
    yield_to_others: YieldToOthers,
    *,
    content_type: str,
    attributes: Mapping[str, str],
) -> Payload:
    """Return a message in binary mode whose data or attributes are damaged: as a text, to be quarantined."""
    await yield_to_others(len(body))
    fields = [("content-type", content_type), *((f"ce-{name}", text) for name, text in attributes.items())]
    head = "".join(f"{name}: {text}\r\n" for name, text in fields).encode(errors="surrogateescape")
    return Payload([Fragment(0, b"%b\r\n%b" % (head, body), RejectionCode.UNREADABLE)], None, {})


async def _parse_other_format(body: bytes, _limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    await yield_to_others(len(body))
    return Payload([Fragment(0, body, RejectionCode.UNREADABLE)], None, {})
