"""
Reads JSON documents, bodies and events alike: the one parser of gateway and jobs. Pure.

JavaScript cuts strings between the halves of an emoji, and its JSON.stringify then writes one half
of a surrogate pair as an escape, `\\ud83d`. That is JSON by the letter, but no Unicode text, and the
parser refuses the whole document for it. One cut emoji must not cost a batch, so each half becomes
U+FFFD, as it would in the browser's own TextEncoder.
"""

import re

import orjson

TYPE_CHARS_MAX = 100

ESCAPES_MAX = 10_000
"""Surrogate escapes looked at, pairs included: some 20 ms of work that others have to wait for."""

REPLACEMENT = rb"\ufffd"

_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<low>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")


def is_event_type(event_type: object) -> bool:
    """Whether an event may have this `type`: text that a table can have for a key."""
    return (
        type(event_type) is str
        and len(event_type) <= TYPE_CHARS_MAX
        and (event_type.isalnum() or _CONTROL.search(event_type) is None)
    )


def read_document(document: bytes) -> object:
    """
    Parse a JSON document; only one that fails is looked at again, for halves of surrogate pairs.

    Raises:
        ValueError: it is not JSON (orjson's JSONDecodeError).
    """
    try:
        found: object = orjson.loads(document)
    except orjson.JSONDecodeError:
        found = orjson.loads(mend_surrogates(document))
    return found


def mend_surrogates(document: bytes) -> bytes:
    """
    Return the JSON document with each half of a surrogate pair that stands alone replaced.

    One with more than ESCAPES_MAX surrogate escapes is returned as it is.
    """
    pieces: list[bytes] = []
    start = 0
    for _ in range(ESCAPES_MAX):
        found = _SURROGATE.search(document, start)
        if found is None:
            return b"".join([*pieces, document[start:]])
        before = document[start : found.start()]
        is_escape = (len(before) - len(before.rstrip(b"\\"))) % 2 == 0
        end = found.end() if is_escape else found.start() + 1
        is_half = is_escape and found["low"] is None
        pieces += [before, REPLACEMENT if is_half else document[found.start() : end]]
        start = end
    return document
