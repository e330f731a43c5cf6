"""
Reads the JSON of a body without blocking the event loop for long.

The cost of JSON depends on its marks, the colons and opening brackets, more than on its bytes. They are
counted before parsing, those in strings included, so a count is never too low; if it is too high, it is
repeated without strings. A body with few marks is parsed at once, one with many is cut between the items of
its batch.

A cut is determined by brackets and strings, and the parser proves it: if the rest of the body parses with an
empty batch, and every piece parses as items of an array, the parts are equal to the whole. A wrong cut can
only fail.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from app.http.errors import BodyTooComplexError, InvalidJSONError, TooManyEventsError
from app.http.fair_scheduler import YieldToOthers
from app.ingest.json_problem import json_problem
from dedupe.model.json_document import read_document

SMALL_BYTES = 128 * 1024
"""Bodies up to this size are parsed without a count, in at most 12 ms."""

AT_ONCE_BYTES = 2 * 1024 * 1024
"""Larger bodies are always cut, and a larger event is too large without being parsed."""

MARKS_AT_ONCE, COMMAS_AT_ONCE = 60_000, 500_000
"""The limits of one piece, hence of one event: 15 ms at most. 2,500 usual events have 55,000 marks."""

MARKS_MAX = 600_000
"""The limit of one body, marks in strings included: 8 MiB of usual events have 250,000."""

MARK_BYTES, COMMA_BYTES = 64, 16
"""The minimum of memory of a value with its name, or a container, and of a number in an array, as Python's
objects. They may take four times as much, which the memory limit in the README includes."""

GROUP_BYTES = 64 * 1024
"""Items are parsed together up to this size."""

WINDOW_BYTES = 64 * 1024
STEP_WORK = 256 * 1024
"""The work of one step of the search for cuts: bytes, and BRACKET_WORK for each bracket."""

BRACKET_WORK = 32

_RUN = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BATCH_NAME = re.compile(rb'[{,\s]"batch"\s*:\s*\Z')
_NAME_BYTES = 64  # before the batch's bracket: its name, and blanks
_BLANKS = b" \t\n\r"
_AFTER_ITEM = re.compile(rb"[ \t\n\r]*([,\]])")


class Oversize(NamedTuple):
    """An item that is too large as sent, and is not checked further."""

    message_id: object
    content: bytes  # as sent, without the write key
    write_key: str = ""


def _nothing(_body_bytes: int, _more_bytes: int) -> None:
    """Charge no memory."""


@dataclass(frozen=True, slots=True)
class JSONLimits:
    """The limits of one body; app.settings.limits documents those of events."""

    events_max: int
    event_bytes_max: int
    may_cut: bool = True  # false: the body must be small enough to be parsed at once
    hold: Callable[[int, int], None] = _nothing
    """Called with a large body's size and the additional memory of its parsed document; may raise."""

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


async def read_large_json(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> object:
    """
    Return the document of a body with more than SMALL_BYTES.

    An array, or a `batch` in an object, is cut between its items. These, or else the document itself, may be
    Oversize.

    Args:
        body: inflated.
        limits: its bounds.
        yield_to_others: awaited before each piece of work.

    Raises:
        InvalidJSONError: it is not JSON.
        BodyTooComplexError: it has more marks than allowed, in total or in one event.
        TooManyEventsError: more items than allowed; only checked for bodies that are cut.
        BodyMemoryFullError: there is no memory for the parsed document; see JSONLimits.hold.
    """
    await yield_to_others(len(body))
    marks = count_marks(body)
    limits.hold(len(body), MARK_BYTES * marks + COMMA_BYTES * body.count(b","))
    await yield_to_others(len(body))  # counting was work as well
    if limits.may_cut:
        if marks > MARKS_MAX:
            raise BodyTooComplexError
        if marks > MARKS_AT_ONCE or len(body) > AT_ONCE_BYTES:
            return await _Cutter(body, limits).read(yield_to_others)
    return limits.judged(_load_piece(body), body)


def count_marks(data: bytes) -> int:
    """Return the number of colons and opening brackets, those in strings included."""
    return data.count(b":") + data.count(b"{") + data.count(b"[")


def is_cheap(piece: bytes) -> bool:
    """Whether a piece may be parsed at once; marks in its strings do not count."""
    if len(piece) <= SMALL_BYTES or _has_few(piece):
        return True
    if len(piece) > AT_ONCE_BYTES:
        return False
    plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * (MARKS_AT_ONCE + COMMAS_AT_ONCE):  # each string follows one of them
        return False
    return _has_few(b"".join(plain.split(b'"')[::2]))


def _has_few(data: bytes) -> bool:
    return count_marks(data) <= MARKS_AT_ONCE and data.count(b",") <= COMMAS_AT_ONCE


def brackets(body: bytes) -> Iterator[int]:
    """Yield the positions of all brackets outside of strings, and -1 after each step of work."""
    place, end, work = 0, len(body), 0
    run, is_in_string = _RUN, False
    while place < end:
        start, place = place, _end_of(run, body, place)
        work += place - start
        if work > STEP_WORK:
            work = 0
            yield -1
        if place == end or place == start + WINDOW_BYTES:
            continue
        if is_in_string:
            if body[place] == ord("\\") and place > start:  # its other half is in the next window
                continue
            place += 1
            run, is_in_string = _RUN, False
        elif body[place] == ord('"'):  # a string that ends in another window
            place += 1
            run, is_in_string = _REST_OF_STRING, True
        else:
            work += BRACKET_WORK
            yield place
            place += 1


def _end_of(run: "re.Pattern[bytes]", body: bytes, place: int) -> int:
    match = run.match(body, place, place + WINDOW_BYTES)
    assert match is not None
    return match.end()


class _Cutter:
    """Cuts one body, and reads its pieces."""

    def __init__(self, body: bytes, limits: JSONLimits) -> None:
        self._body = body
        self._limits = limits
        self._items: list[object] = []
        self._outside: list[bytes] = []  # the body without the items
        self._outside_from = 0
        self._group_from = 0
        self._is_item_due = False  # after a comma

    async def read(self, yield_to_others: YieldToOthers) -> object:
        """Return the document. Raises as read_large_json."""
        for work_bytes in self._steps():
            await yield_to_others(work_bytes)
        document, outside = await self._read_outside(yield_to_others, b"")
        if isinstance(document, list):
            return self._items
        if not isinstance(document, dict) or not isinstance(batch := document.get("batch"), list):
            return self._limits.judged(document, outside)
        if batch and len(outside) > AT_ONCE_BYTES:
            raise BodyTooComplexError  # its name is escaped, so the batch was not found
        if batch or (b"\\u" in outside and (await self._read_outside(yield_to_others, b"0"))[0] == document):
            return document  # the last batch has an escaped name, and is not the one that was cut
        return document | {"batch": self._items}

    async def _read_outside(self, yield_to_others: YieldToOthers, inside: bytes) -> tuple[object, bytes]:
        """Return the document with `inside` instead of the items, and its JSON."""
        outside = inside.join([*self._outside, self._body[self._outside_from :]])
        await yield_to_others(len(outside))
        return _load_piece(outside, ", counted without the events" if self._outside else ""), outside

    def _steps(self) -> Iterator[int]:
        """Find the items, and parse them; yield the bytes of each step."""
        body, depth, item_from = self._body, 0, 0
        level = 0  # the depth of the items' array, 1 or 2; 0 outside of it
        for place in brackets(body):
            if place < 0:
                yield GROUP_BYTES
            elif body[place] in b"[{":
                depth += 1
                if not level and self._is_batch(place, depth):
                    level = depth
                    self._begin_batch(place + 1)
                elif depth == level + 1:
                    item_from = place
            else:
                depth -= 1
                if level and depth == level:
                    if work_bytes := self._end_item(item_from, place + 1):
                        yield work_bytes
                elif level and depth < level:
                    level = 0
                    self._end_batch(place)
                    yield GROUP_BYTES
                if depth <= 0:
                    return
        raise InvalidJSONError

    def _is_batch(self, place: int, depth: int) -> bool:
        """Whether a bracket begins an array of items."""
        if self._body[place] != ord("["):
            return False
        if depth == 2:
            return _BATCH_NAME.search(self._body, max(0, place - _NAME_BYTES), place) is not None
        return depth == 1

    def _begin_batch(self, place: int) -> None:
        self._items = []  # the last of two batches counts
        self._outside.append(self._body[self._outside_from : place])
        self._group_from = place
        self._is_item_due = False

    def _end_item(self, start: int, end: int) -> int:
        """Parse the collected items if they are enough, and return their size."""
        if end - start > AT_ONCE_BYTES:
            before = self._body[self._group_from : start].rstrip(_BLANKS)
            if before:
                self._parse_group(before.removesuffix(b",") if before.endswith(b",") else b"")
            content = self._body[start:end]
            item = _load_piece(content, f", counted from byte {start + 1:,}")
            self._items.append(self._limits.judged(item, content))
        elif end - self._group_from >= GROUP_BYTES:
            self._parse_group(self._body[self._group_from : end])
        else:
            return 0
        work_bytes = end - self._group_from
        after = _AFTER_ITEM.match(self._body, end)
        if after is None:
            raise InvalidJSONError
        self._is_item_due = after[1] == b","
        self._group_from = after.end() if self._is_item_due else end
        return work_bytes

    def _end_batch(self, place: int) -> None:
        group = self._body[self._group_from : place]
        if self._is_item_due or group.strip(_BLANKS):
            self._parse_group(group)
        self._outside_from = place

    def _parse_group(self, group: bytes) -> None:
        """Parse some items; an empty group, after a comma, is not JSON."""
        items = _load_piece(b"[%b]" % group, f", counted from byte {self._group_from:,}")
        if not isinstance(items, list) or not items:
            raise InvalidJSONError
        self._items += items
        if len(self._items) > self._limits.events_max:
            raise TooManyEventsError


def _load_piece(piece: bytes, where: str = "") -> object:
    if not is_cheap(piece):
        raise BodyTooComplexError
    try:
        return read_document(piece)
    except ValueError as err:
        raise InvalidJSONError(detail=json_problem(err, piece) + where) from err
