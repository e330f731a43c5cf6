"""
The message id of a CloudEvent, by its attributes `source` and `id`. Pure and frozen.

CloudEvents 1.0 says that source and id together identify an event. The record of one keeps both in its value,
so its message id, and with it its key, can be computed again from the record alone.
"""

import hashlib
from collections.abc import Mapping

from dedupe.model.identity import MESSAGE_ID_BYTES_MAX, is_blank, message_id_of

SPECVERSION = "1.0"

BETWEEN = " "
"""Stands between source and id. A source is a URI reference, which has no blank."""

DIGEST = "sha256:"
"""The beginning of the other form; there is no blank in it, so it is no pair of source and id."""


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
