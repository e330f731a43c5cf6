"""
The message id of a CloudEvent, by its attributes `source` and `id`. Pure and frozen.

CloudEvents 1.0 says that source and id together identify an event. The record of one keeps both in its value,
so its message id, and with it its key, can be computed again from the record alone.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from dedupe.model.identity import MESSAGE_ID_BYTES_MAX, is_blank, message_id_of

SPECVERSION = "1.0"

BETWEEN = " "
"""Stands between source and id. A source is a URI reference, which has no blank."""

DIGEST = "sha256:"
"""The beginning of the other form; there is no blank in it, so it is no pair of source and id."""


DATA, DATA_BASE64, DATA_TYPE = "data", "data_base64", "datacontenttype"
JSON_TYPE = "application/json"

_JSON = re.compile(r"[\w.!#$&^+-]+/(?:[\w.!#$&^+-]+\+)?json")
_PLAIN_JSON = re.compile(r"\s*application/json\s*(?:;\s*charset=\"?utf-8\"?\s*)?", re.IGNORECASE)


def cloudevent_id(source: str, event_id: str) -> str:
    """
    Return the message id of a CloudEvent: equal for equal pairs of source and id, different for others.

    It is source, a blank and id; or, if that is longer than 255 bytes or the source has a blank, a SHA-256 in
    hex of `<bytes of the source, in decimal>:<source><id>`.
    """
    if BETWEEN not in source:
        message_id = f"{source}{BETWEEN}{event_id}"
        if len(message_id.encode()) <= MESSAGE_ID_BYTES_MAX:
            return message_id
    source_bytes = source.encode()
    content = b"%d:%b%b" % (len(source_bytes), source_bytes, event_id.encode())
    return DIGEST + hashlib.sha256(content).hexdigest()


def id_of_cloudevent(document: Mapping[str, object]) -> str | None:
    """
    Return the message id of a CloudEvent in JSON; None if it lacks what each has.

    It has specversion "1.0", and id, source and type as text that shows something; an integer counts as its
    decimal text where an id is meant.
    """
    event_id = message_id_of(document.get("id"))
    source, event_type = document.get("source"), document.get("type")
    if not event_id or type(source) is not str or type(event_type) is not str:
        return None
    if document.get("specversion") != SPECVERSION or is_blank(source) or is_blank(event_type):
        return None
    return cloudevent_id(source, event_id)


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def may_be_json(content_type: str) -> bool:
    """Whether data of this content type may be JSON; without any they may."""
    return not content_type or _JSON.fullmatch(media_type(content_type)) is not None


def compared_form(document: dict[str, Any]) -> dict[str, Any]:
    """
    Return a CloudEvent as its content is compared: itself, if that is the same.

    One event reads differently in structured and in binary mode, where all attributes are text and data are
    bytes. So attributes are compared as text, and not if they are null; data that are text and not JSON as
    bytes; and JSON without a content type as JSON.
    """
    changed = {
        name: _TEXTS[type(value)](value)
        for name, value in document.items()
        if type(value) in _TEXTS and name != DATA
    }
    declared, data = document.get(DATA_TYPE), document.get(DATA)
    if DATA in document and (declared is None or (type(declared) is str and _PLAIN_JSON.fullmatch(declared))):
        changed[DATA_TYPE] = JSON_TYPE
    elif type(data) is str and type(declared) is str and not may_be_json(declared):
        changed[DATA], changed[DATA_BASE64] = None, b64encode(data.encode()).decode()
    if not changed:
        return document
    return {name: value for name, value in (document | changed).items() if changed.get(name, "") is not None}


_TEXTS: dict[type, Callable[[object], str | None]] = {
    bool: lambda value: "true" if value else "false",
    int: str,
    type(None): lambda _: None,
}
