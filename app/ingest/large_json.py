"""
Reads the JSON of a body without blocking the event loop for long, whatever its shape.

The cost of JSON depends on its marks, the colons and opening brackets, more than on its bytes. They are
counted before parsing, those in strings included, so a count is never too low; if it is too high, it is
repeated without strings. A body with few marks is parsed at once, one with many is cut between the items of
its batch.

A cut is determined by brackets and strings, and the parser proves it: if the rest of the body parses with an
empty batch, and every piece parses as items of an array, the parts are equal to the whole. A wrong cut can
only fail.

What cannot be parsed in one short piece, and what is beyond the largest number of events, is a Fragment:
quarantined as it is, and not proved.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.auth.write_keys import own_key
from app.http.errors import InvalidJSONError
from app.http.fair_scheduler import YieldToOthers
from app.http.json_scan import Scan, elements_end, split_elements
from app.ingest.deep_json import dumps_any
from app.ingest.items import EVENT_FIELDS, FREE_RATE, Fragment, Oversize, Packed
from app.ingest.json_problem import json_problem
from app.ingest.unparsed_key import with_own_key
from dedupe.decide.rejection import RejectionCode
from dedupe.model.json_document import read_document, work_on_numbers

SMALL_BYTES = 128 * 1024
"""Bodies up to this size are parsed without a count, in at most 12 ms."""

AT_ONCE_BYTES = 2 * 1024 * 1024
"""Larger bodies are always cut, and a larger event is too large without being parsed."""

MARKS_AT_ONCE = 60_000
"""A body with more is cut: 2,500 usual events have 55,000 marks."""

EVENT_MARKS_MAX, EVENT_COMMAS_MAX = 160_000, 500_000
"""
The limits of one event, which cannot be cut: 20 ms at most. Only odd shapes have more: the largest event that
consists of nothing but pairs of digits has 133,000 marks.
"""

QUOTES_MAX = 200_000
"""Of a piece with more, the marks in its strings count: to leave them out would take longer than 5 ms."""

DOCUMENT_BYTES_MAX = 24 * 1024 * 1024
"""
The limit of a parsed document, by the minima below. Items beyond it are packed: proved, and parsed again one
by one when they are identified. 8 MiB of usual events take 20 MiB.
"""

MARK_BYTES, COMMA_BYTES = 64, 16
"""The minimum of memory of a value with its name, or a container, and of a number in an array, as Python's
objects. They may take four times as much, which the memory limit in the README includes."""

MARK_WORK = 8
"""The work of a mark, in bytes of parsing; usual events have a mark in 15 bytes or more."""

GROUP_BYTES = 64 * 1024
"""Items are parsed together up to this size."""

REST_BYTES = 128 * 1024
"""The size of a fragment of the events beyond the limit; a larger event has one of its own."""

REST_ITEMS = 1_000
"""The size of such a fragment of unwrapped events."""

_BATCH_NAME = re.compile(
    rb'[{,\s]"(?:b|\\u0062)(?:a|\\u0061)(?:t|\\u0074)(?:c|\\u0063)(?:h|\\u0068)"\s*:\s*\Z'
)
_NAME_BYTES = 96  # before the batch's bracket: its name, and blanks
_BLANKS = b" \t\n\r"
_MARKS = b":[{"


def _nothing(_body_bytes: int, _more_bytes: int) -> None:
    """Charge no memory."""


def _no_check(_top: Mapping[str, Any]) -> None:
    """Accept every body."""


@dataclass(frozen=True, slots=True)
class JSONLimits:
    """The limits of one body; app.settings.limits documents those of events."""

    events_max: int
    event_bytes_max: int
    hold: Callable[[int, int], None] = _nothing
    """Called with a large body's size and the additional memory of its parsed document; may raise."""
    check_top: Callable[[Mapping[str, Any]], None] = _no_check
    """Called with the top level of a body that is cut, before its items are parsed; may raise."""

    def judged(self, item: object, content: bytes) -> object:
        """Return a parsed item, or Oversize if its JSON is too large."""
        if len(content) <= max(self.event_bytes_max, AT_ONCE_BYTES):
            return item
        if not isinstance(item, dict):
            return Oversize(None, content)
        write_key = item.get("writeKey")
        if not isinstance(write_key, str):
            return Oversize(item.get("messageId"), content)
        content = content.replace(orjson.dumps(write_key), b'""')
        return Oversize(item.get("messageId"), content, write_key)

    def unparsed(self, content: bytes, position: int) -> Oversize | Fragment:
        """Return an item that is too expensive to parse."""
        if len(content.translate(None, _BLANKS)) > self.event_bytes_max:
            return Oversize(None, content)
        return Fragment(position, content, RejectionCode.EVENT_TOO_COMPLEX)

    def has_too_many(self, document: object) -> bool:
        """Whether a parsed document has more items than allowed."""
        items = document.get("batch") if type(document) is dict else document
        return type(items) is list and len(items) > self.events_max


async def read_large_json(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> object:
    """
    Return the document of a body with more than SMALL_BYTES.

    An array, or a `batch` in an object, is cut between its items. These, or else the document itself, may be
    Oversize, Fragment or Packed.

    Args:
        body: inflated.
        limits: its bounds.
        yield_to_others: awaited before each piece of work.

    Raises:
        InvalidJSONError: it is not JSON, or its top level is too expensive to parse.
        BodyMemoryFullError: there is no memory for the parsed document; see JSONLimits.hold.
        GatewayError: those of JSONLimits.check_top.
    """
    await yield_to_others(len(body))
    marks = count_marks(body)
    await yield_to_others(len(body))  # counting was work as well
    commas = body.count(b",")
    limits.hold(len(body), min(MARK_BYTES * marks + COMMA_BYTES * commas, DOCUMENT_BYTES_MAX + len(body)))
    await yield_to_others(len(body))
    if marks > MARKS_AT_ONCE or commas > EVENT_COMMAS_MAX or len(body) > AT_ONCE_BYTES:
        return await read_in_pieces(body, limits, yield_to_others)
    document = _load_piece(body)
    await yield_to_others(work_on_numbers())
    if limits.has_too_many(document):
        return await read_in_pieces(body, limits, yield_to_others)
    return limits.judged(document, body)


async def read_in_pieces(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> object:
    """Return the document of a body of any size, cut between its items; see read_large_json."""
    return await _Cutter(body, limits).read(yield_to_others)


def count_marks(data: bytes) -> int:
    """Return the number of colons and opening brackets, those in strings included."""
    return len(data) - len(data.translate(None, _MARKS))


def is_cheap(piece: bytes) -> bool:
    """Whether a piece may be parsed at once; marks in its strings do not count."""
    if len(piece) <= SMALL_BYTES or _has_few(piece):
        return True
    if len(piece) > AT_ONCE_BYTES:
        return False
    plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    return plain.count(b'"') <= QUOTES_MAX and _has_few(b"".join(plain.split(b'"')[::2]))


def _has_few(data: bytes) -> bool:
    return count_marks(data) <= EVENT_MARKS_MAX and data.count(b",") <= EVENT_COMMAS_MAX


class _Cutter:
    """Cuts one body, and reads its pieces."""

    def __init__(self, body: bytes, limits: JSONLimits) -> None:
        self._body = body
        self._limits = limits
        self._start = self._end = -1  # of the items; the last of two batches counts
        self._is_one_object = self._is_scalar = False  # without items
        self._document: object = None  # without items
        self._items: list[object] = []
        self._rest: list[Fragment] = []
        self._document_bytes = 0
        self._piece_work = 0  # in bytes of parsing

    async def read(self, yield_to_others: YieldToOthers) -> object:
        """Return the document. Raises as read_large_json."""
        for work_bytes in self._find_items():
            await yield_to_others(work_bytes)
        if self._start < 0:
            is_cheap_body = self._is_scalar or is_cheap(self._body)
            await yield_to_others(len(self._body))  # counting was work as well
            for work_bytes in self._find_single(is_cheap_body=is_cheap_body):
                await yield_to_others(work_bytes)
            return self._document
        outside = self._body[: self._start] + self._body[self._end :]
        await yield_to_others(len(outside))
        if not is_cheap(outside):
            raise InvalidJSONError(detail="the fields beside its events are too many")
        document = _load_piece(outside, ", counted without the events")
        if isinstance(document, dict):
            self._limits.check_top(document)
            if document.get("batch") != []:
                return self._limits.judged(document, outside)
        for work_bytes in self._read_items():
            await yield_to_others(work_bytes)
        items = self._items + self._rest
        return document | {"batch": items} if isinstance(document, dict) else items

    # ---- cutting

    def _find_items(self) -> Iterator[int]:
        """Find the array of items; yield the bytes of each step."""
        scan = Scan(self._body, 0)
        yield from scan.to_bracket()
        if scan.place == len(self._body):
            self._is_scalar = True
            return
        if self._body[scan.place] == ord("["):
            yield from self._take_array(scan)
        elif self._body[scan.place] == ord("{"):
            scan.place += 1
            while (yield from self._find_batch(scan)):
                pass
            scan.place += 1
            self._is_one_object = not self._body[scan.place :].strip(_BLANKS)

    def _find_batch(self, scan: Scan) -> Generator[int, None, bool]:
        """Go behind the next container of the top level, and note if it is a batch; False at its end."""
        yield from scan.to_bracket()
        place = scan.place
        if place == len(self._body):
            raise InvalidJSONError
        byte = self._body[place]
        if byte in b"]}":
            return False
        if byte == ord("[") and _BATCH_NAME.search(self._body, max(0, place - _NAME_BYTES), place):
            yield from self._take_array(scan)
        else:
            yield from scan.past_container()
        return True

    def _take_array(self, scan: Scan) -> Iterator[int]:
        self._start = scan.place + 1
        yield from scan.past_container()
        self._end = scan.place - 1

    def _find_single(self, *, is_cheap_body: bool) -> Iterator[int]:
        """Find a document without items; yield the bytes of each step."""
        body = self._body
        if self._is_scalar:  # such as a text that holds JSON
            self._document = _load_piece(body)
        elif is_cheap_body:
            self._document = self._limits.judged(_load_piece(body), body)
        elif not self._is_one_object:
            raise InvalidJSONError
        else:
            event = self._limits.unparsed(body.strip(_BLANKS), body.index(b"{"))
            self._document = yield from with_own_key(event)

    # ---- reading

    def _read_items(self) -> Iterator[int]:
        """Parse the items group by group; yield the bytes of each step."""
        scan = Scan(self._body, self._start)
        while len(self._items) < self._limits.events_max:
            start = scan.place
            end = elements_end(self._body, start, min(start + GROUP_BYTES, self._end))
            if end > start:
                taken = self._take_group(start, end - 1)
                yield max(self._piece_work, GROUP_BYTES // 4) + work_on_numbers()
                scan.place = taken
                continue
            yield from scan.past_element()
            if not self._items and not self._body[self._start : self._end].strip(_BLANKS):
                return
            yield from self._take_element(start, scan.place)
            if scan.place >= self._end:
                return
            scan.place += 1
        yield from self._take_rest(scan)

    def _take_group(self, start: int, end: int) -> int:
        """Parse some items, as many as allowed; return the place behind their last comma."""
        group = self._body[start:end]
        items = _load_piece(b"[%b]" % group, f", counted from byte {start:,}")
        if not isinstance(items, list) or not items:
            raise InvalidJSONError
        room = self._limits.events_max - len(self._items)
        if len(items) > room:
            items = items[:room]
            *_, size = split_elements(group, room)
            group, end = group[: size - 1], start + size - 1
        if self._has_room(group):
            self._items += items
        else:
            ends = [*split_elements(group, len(items) - 1), len(group) + 1]
            starts = [0, *ends]
            self._items += [
                _packed(item, group[at : to - 1]) for item, at, to in zip(items, starts, ends, strict=False)
            ]
        return end + 1

    def _take_element(self, start: int, end: int) -> Iterator[int]:
        """Parse one item, or set it aside; yield the bytes of each step."""
        content = self._body[start:end].strip(_BLANKS)
        if len(content) > SMALL_BYTES:
            yield len(content)  # to be counted
        if not is_cheap(content):
            event = self._limits.unparsed(content, self._body.index(content[:1], start))
            self._items.append((yield from with_own_key(event)))
            yield len(content)
            return
        if len(content) > SMALL_BYTES:
            yield len(content)  # counting was work as well
        items = _load_piece(b"[%b]" % content, f", counted from byte {start:,}")
        if not isinstance(items, list) or len(items) != 1:
            raise InvalidJSONError
        item = self._limits.judged(items[0], content)
        if not isinstance(item, Oversize) and not self._has_room(content):
            item = _packed(item, content)
        self._items.append(item)
        yield len(content) + work_on_numbers()
        del items, item
        if len(content) > SMALL_BYTES:
            yield len(content) // FREE_RATE  # to free a packed one was work as well

    def _has_room(self, piece: bytes) -> bool:
        """Whether the memory of a document has room for a parsed piece."""
        marks = count_marks(piece)
        self._piece_work = max(len(piece), MARK_WORK * marks)
        self._document_bytes += MARK_BYTES * marks + COMMA_BYTES * piece.count(b",")
        return self._document_bytes <= DOCUMENT_BYTES_MAX

    def _take_rest(self, scan: Scan) -> Iterator[int]:
        """Make fragments of the items beyond the limit: JSON arrays, cut between items."""
        start = scan.place
        while scan.place < self._end:
            before = scan.place
            scan.place = elements_end(self._body, before, min(before + GROUP_BYTES, self._end))
            if scan.place > before:
                yield GROUP_BYTES
            else:
                yield from scan.past_element()
                if scan.place - start > REST_BYTES and before > start:
                    self._take_fragment(start, before)
                    start = before
                scan.place = min(scan.place + 1, self._end)
                yield scan.place - before
            if scan.place - start >= REST_BYTES - GROUP_BYTES:
                self._take_fragment(start, scan.place)
                start = scan.place
        self._take_fragment(start, self._end)

    def _take_fragment(self, start: int, end: int) -> None:
        content = self._body[start:end].strip(_BLANKS + b",")
        if content:
            self._rest.append(Fragment(start, b"[%b]" % content, RejectionCode.TOO_MANY_EVENTS))


def fragments_of(items: list[object]) -> list[object]:
    """Return items beyond the limit that were unwrapped, hence parsed, as fragments."""
    parsed = [item for item in items if not isinstance(item, Fragment)]
    groups = [parsed[start : start + REST_ITEMS] for start in range(0, len(parsed), REST_ITEMS)]
    return [
        *(Fragment(0, dumps_any(group), RejectionCode.TOO_MANY_EVENTS) for group in groups),
        *(item for item in items if isinstance(item, Fragment)),
    ]


def _packed(item: object, content: bytes) -> object:
    """Return an object or array as Packed, and anything else as it is."""
    if type(item) is dict:
        return Packed(content, own_key(item), not EVENT_FIELDS.isdisjoint(item))
    return Packed(content, "", is_event=False) if type(item) is list else item


def _load_piece(piece: bytes, where: str = "") -> object:
    """Parse a piece; one of a size that is never stored is not mended."""
    try:
        return read_document(piece) if len(piece) <= AT_ONCE_BYTES else orjson.loads(piece)
    except ValueError as err:
        raise InvalidJSONError(detail=json_problem(err, piece) + where) from err
