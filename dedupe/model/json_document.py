"""
Reads JSON documents, bodies and events alike: the one parser of gateway and jobs. Pure.

JavaScript cuts strings between the halves of an emoji, and its JSON.stringify then writes one half
of a surrogate pair as an escape, `\\ud83d`. That is JSON by the letter, but no Unicode text, and the
parser refuses the whole document for it. One cut emoji must not cost a batch, so each half becomes
U+FFFD, as it would in the browser's own TextEncoder.

Python writes a number that is none as NaN, Infinity or -Infinity, which is no JSON at all; each becomes
null, as it does in JavaScript.

Windows begins a text with a byte order mark, which is no part of it and is skipped.
"""

import re
from collections.abc import Mapping

import orjson

TYPE_CHARS_MAX = 100

ESCAPES_MAX = 10_000
"""Surrogate escapes looked at, pairs included: some 20 ms of work that others have to wait for."""

REPLACEMENT = rb"\ufffd"

INFINITY = b"Infinity"
NO_NUMBERS = (b"NaN", INFINITY)
NO_NUMBERS_MAX = 10_000
"""Times that each of them is looked at, those in strings included."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

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
    Parse a JSON document; only one that fails is looked at again, for what can be mended.

    Raises:
        ValueError: it is not JSON (orjson's JSONDecodeError).
    """
    try:
        found: object = orjson.loads(document)
    except orjson.JSONDecodeError:
        # twice where a program that joins files has added its own
        bare = document.removeprefix(BYTE_ORDER_MARK).removeprefix(BYTE_ORDER_MARK)
        found = orjson.loads(mend_numbers(mend_surrogates(bare)))
    return found


def dumps_to_keep(document: Mapping[str, object]) -> bytes:
    """Return a document as JSON that waits: orjson 3.13 leaves its buffer, 4 KB or more, behind its bytes."""
    return memoryview(orjson.dumps(document)).tobytes()


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


def mend_numbers(document: bytes) -> bytes:
    """
    Return the JSON document with null in the place of each NaN, Infinity and -Infinity, but in strings.

    A word that stands there more often than NO_NUMBERS_MAX is left as it is.
    """
    words = sorted((place, word) for word in NO_NUMBERS for place in _places(document, word))
    pieces: list[bytes] = []
    start, is_in_string = 0, False
    for place, word in words:
        before = document[start:place]
        is_in_string ^= _quotes(before) % 2 == 1
        if not is_in_string and word == INFINITY:
            before = before.removesuffix(b"-")
        pieces += [before, word if is_in_string else b"null"]
        start = place + len(word)
    return b"".join([*pieces, document[start:]])


def _places(document: bytes, word: bytes) -> list[int]:
    """Return where a word stands; nowhere if that is too often. Ten times as quick as a pattern."""
    places: list[int] = []
    place = document.find(word)
    while place >= 0:
        if len(places) == NO_NUMBERS_MAX:
            return []
        places.append(place)
        place = document.find(word, place + len(word))
    return places


def _quotes(part: bytes) -> int:
    """Return how many quotes begin or end a string in a part that begins with no escaped character."""
    if b"\\" in part:
        part = part.replace(rb"\\", b"").replace(rb"\"", b"")
    return part.count(b'"')
