"""
The parser of JSON documents, bodies and events, of gateway and jobs. Pure.

JavaScript may cut a string between the halves of an emoji; its JSON.stringify then writes a lone surrogate,
such as `\\ud83d`. That is valid JSON but not Unicode text, and orjson refuses the document. Each lone
surrogate is replaced by U+FFFD, as in the browser's TextEncoder.

Python writes NaN, Infinity and -Infinity, which are not JSON; each is replaced by a number that is too large,
which dedupe.model.json_number stores as null. Windows begins a text with a byte order mark, which is skipped.
"""

import re
from collections.abc import Callable, Mapping

import msgspec
import orjson

from dedupe.model.json_number import (
    STORED,
    WORK_AT_ONCE,
    Floats,
    ManyNumbersError,
    Number,
    NumberReading,
)

TYPE_CHARS_MAX = 100

ESCAPES_MAX = 10_000
"""The limit of surrogate escapes, pairs included, which take about 20 ms of the event loop."""

REPLACEMENT = rb"\ufffd"

INFINITY = b"Infinity"
NO_NUMBERS = (b"NaN", INFINITY)
NO_NUMBERS_MAX = 10_000
"""The limit of each word in a document, those in strings included."""

TOO_LARGE = b" 1e999 "
"""It neither continues a number before it nor begins one behind it."""


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<low>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{4000,}+(?![0-9.eE])")
"""An integer that no float is near; Python refuses one of 4,300 digits."""

_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")


_NO_DOCUMENT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_event_type(event_type: object) -> bool:
    """Whether an event may have this `type`: short text without control characters."""
    return (
        type(event_type) is str
        and len(event_type) <= TYPE_CHARS_MAX
        and (event_type.isalnum() or _CONTROL.search(event_type) is None)
    )


_floats = Floats()
_decode: Callable[[bytes], object] = msgspec.json.Decoder(float_hook=_floats.__getitem__).decode
_decode_unread: Callable[[bytes], object] = msgspec.json.Decoder(float_hook=Number).decode


def read_document(document: bytes) -> object:
    """
    Parse a JSON document; if that fails, mend and parse it again.

    Numbers that orjson would not write as they were sent are `Number`, or integers of any size. If there are
    many numbers, all with a point or an exponent are, and not read.

    Raises:
        ValueError: it is not JSON (orjson's JSONDecodeError).
    """
    try:
        return _decoded(document)
    except _NO_DOCUMENT:
        # twice where a program that joins files has added its own
        bare = document.removeprefix(BYTE_ORDER_MARK).removeprefix(BYTE_ORDER_MARK)
        mended = mend_numbers(mend_surrogates(bare))
    try:
        return _decoded(mended)
    except _NO_DOCUMENT:
        # for the place of the error; or the document is nested almost 1,000 deep
        parsed: object = orjson.loads(mended)
        return parsed


def _decoded(document: bytes) -> object:
    _floats.work_left = WORK_AT_ONCE
    try:
        return _decode(document)
    except ManyNumbersError:
        return _decode_unread(document)


def work_on_numbers() -> int:
    """Return the work on the numbers of the document that was read last, in bytes of parsing."""
    return WORK_AT_ONCE - _floats.work_left


def read_stored(document: bytes) -> object:
    """
    Parse a document that a gateway has written, for orjson to write it again, digit for digit.

    Raises:
        ValueError: it is not JSON.
    """
    around = [read_document(document)]
    if NumberReading(around, STORED).all().is_too_deep:  # of quarantine
        return orjson.loads(document)
    return around[0]


def dumps_to_keep(document: Mapping[str, object]) -> bytes:
    """Return JSON bytes to store: a copy, since those of orjson 3.13 keep its buffer of 4 KB or more."""
    return memoryview(orjson.dumps(document, default=STORED)).tobytes()


def mend_surrogates(document: bytes) -> bytes:
    """
    Return the JSON document with each lone surrogate replaced.

    A document with more than ESCAPES_MAX surrogate escapes is returned unchanged.
    """
    pieces: list[bytes] = []
    start = 0
    for _ in range(ESCAPES_MAX):
        match = _SURROGATE.search(document, start)
        if match is None:
            return b"".join([*pieces, document[start:]])
        before = document[start : match.start()]
        is_escape = (len(before) - len(before.rstrip(b"\\"))) % 2 == 0
        end = match.end() if is_escape else match.start() + 1
        is_half = is_escape and match["low"] is None
        pieces += [before, REPLACEMENT if is_half else document[match.start() : end]]
        start = end
    return document


def mend_numbers(document: bytes) -> bytes:
    """
    Return the JSON document with TOO_LARGE for each NaN, Infinity, -Infinity and too long integer.

    Those in strings are left unchanged.
    A word that occurs more than NO_NUMBERS_MAX times is left unchanged.
    """
    words = [(place, word) for word in NO_NUMBERS for place in _places(document, word)]
    words += [(match.start(), match[0]) for match in _LONG_INTEGER.finditer(document)]
    words.sort()
    pieces: list[bytes] = []
    start, is_in_string = 0, False
    for place, word in words:
        before = document[start:place]
        is_in_string ^= _quotes(before) % 2 == 1
        if not is_in_string and word == INFINITY:
            before = before.removesuffix(b"-")
        pieces += [before, word if is_in_string else TOO_LARGE]
        start = place + len(word)
    return b"".join([*pieces, document[start:]])


def _places(document: bytes, word: bytes) -> list[int]:
    """Return the places of a word, none if there are more than NO_NUMBERS_MAX."""
    places: list[int] = []
    place = document.find(word)
    while place >= 0:
        if len(places) == NO_NUMBERS_MAX:
            return []
        places.append(place)
        place = document.find(word, place + len(word))
    return places


def _quotes(part: bytes) -> int:
    """Return the number of unescaped quotes in a part that does not begin with an escaped character."""
    if b"\\" in part:
        part = part.replace(rb"\\", b"").replace(rb"\"", b"")
    return part.count(b'"')
