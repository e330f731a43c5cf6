"""
Reads a body that is not JSON, as far as its quotes and brackets tell what belongs together. Pure.

The result is a list of pieces: every complete object that no other complete object contains, and what stands
alone between them, such as the bracket of an object that never ends. Brackets of the other kind, an object
without a name within an object, a name within an array, and a string with text behind it do not occur in
JSON. There something is damaged, and a `BREAK` ends everything that was open.

Whether a complete object is JSON is not checked here, and neither is whether it is an event, see
app.ingest.salvage and docs/adr/0022-salvage.md.
"""

import re
from collections.abc import Generator, Iterator
from enum import IntEnum
from typing import NamedTuple

WINDOW_BYTES = 64 * 1024
STEP_WORK = 96 * 1024
"""The work of one step: bytes, and TOKEN_WORK for each bracket; 4 ms."""

TOKEN_WORK = 96

DEPTH_MAX = 1024
"""The parser reads no deeper document."""

PIECES_MAX = 60_000
"""The limit of pieces and of breaks, which bounds time and memory. The rest of the body is not read."""

QUOTE, COLON, OPENING, CLOSING = ord('"'), ord(":"), b"{[", b"}]"

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_IN_OBJECT = re.compile(
    rb'(?:[^"{}\[\]\\]++|\\["\\]?|' + _STRING + rb"(?=[ \t\r\n\0]*+[:,}\]]))*+", re.DOTALL
)
_IN_ARRAY = re.compile(rb'(?:[^"{}\[\]\\:]++|\\["\\]?|' + _STRING + rb"(?=[ \t\r\n\0]*+[,}\]]))*+", re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BLANKS = re.compile(rb"[ \t\r\n\0]*+")
_ONLY_MARKS = re.compile(rb"[ \t\r\n\0,:{}\[\]]*+\Z")
_NAMED = re.compile(rb'"[ \t\r\n\0]*:[ \t\r\n\0]*\Z')
_BATCH = re.compile(rb'"batch"[ \t\r\n\0]*:[ \t\r\n\0]*\Z')
_BEFORE_NAME = re.compile(rb"[,{]|\A")
_OTHER_LETTERS = re.compile(rb"[^a-z]+")
_IN_ENVELOPE = re.compile(
    rb'"(?:context|integrations|sentAt|writeKey|client|session)"[ \t\r\n\0]*:[ \t\r\n\0]*\Z'
)
_BATCH_NAME = b"batch"
_EVENT_FIELD = re.compile(rb'"(?:type|event|messageId)"')
_EVENT = re.compile(rb'"event"[ \t\r\n\0]*:(?![ \t\r\n\0]*null)')
_NAME_BYTES = 64
OUTER_DEPTH = 2
"""What contains an item: the envelope and its batch."""

_BEGINS_OBJECT = (b'"', b"}", b"")
_AROUND = b" \t\r\n\0"
_MARKS = b" \t\r\n\0,:{}[]"
_BEFORE_STRING = (b",", b":", b"{", b"[")
_END_OF_NAME_OR_VALUE = b":,}]"


class Kind(IntEnum):
    """What a piece is."""

    OBJECT = 0
    """A complete object."""
    VALUE = 1
    """A complete array with a name."""
    OPEN_OBJECT = 2
    OPEN_ARRAY = 3
    CLOSE_OBJECT = 4
    CLOSE_ARRAY = 5
    BREAK = 6


class Piece(NamedTuple):
    """A part of the body."""

    kind: Kind
    start: int
    end: int
    is_named: bool = False
    """Whether a name stands before it, as in an object."""
    is_batch: bool = False
    """Whether that name is `batch`; of an object: whether it holds one."""


class _Open(NamedTuple):
    is_array: bool
    place: int  # of its piece, in the list
    is_named: bool


class BrokenJSON:
    """Reads one body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._open: list[_Open] = []
        self._envelopes: set[int] = set()  # indexes of their pieces
        self._has_object = False
        """Whether an object that may be an event was complete."""
        self._judged: set[int] = set()  # those that are known to be envelopes or not
        self._breaks = 0
        self.pieces: list[Piece] = []
        self.end = len(body)
        """Where reading stopped."""

    def read(self) -> Iterator[int]:
        """Read the body into `pieces`; yield the work of each step, in bytes."""
        body, end = self._body, len(self._body)
        place = work = 0
        while place < end:
            run = _IN_ARRAY if self._is_among_items() else _IN_OBJECT
            start, place = place, _end_of(run, body, place)
            work += place - start + TOKEN_WORK
            if work > STEP_WORK:
                yield work
                work = 0
            if place >= end:
                break
            mark = body[place]
            if mark == QUOTE:
                close = yield from self._end_of_string(place + 1)
                after = end if close == end else _end_of(_BLANKS, body, close + 1, end)
                work += after - place
                place = self._read_string(place, close, after)
            elif mark in OPENING:
                self._read_opening(place, mark)
                place += 1
            elif mark in CLOSING:
                self._read_closing(place, mark)
                place += 1
            elif mark == COLON:  # in an array
                place += 1
            if len(self.pieces) > PIECES_MAX or self._breaks > PIECES_MAX:
                self.end = place
                break
        self._open.clear()

    def _is_among_items(self) -> bool:
        """Whether no name may follow: in an array, or behind an object without one."""
        if self._open:
            return self._open[-1].is_array
        last = self.pieces[-1] if self.pieces else None
        return last is not None and last.kind is Kind.OBJECT and not last.is_named

    def _end_of_string(self, place: int) -> Generator[int, None, int]:
        """Return the place of the next quote that is not escaped, else the end of the body."""
        body, end, work = self._body, len(self._body), 0
        while place < end and body[place] != QUOTE:
            start, place = place, _end_of(_REST_OF_STRING, body, place)
            work += place - start
            if work > STEP_WORK:
                yield work
                work = 0
            if place == start:
                return end  # half an escape
        return place

    def _read_string(self, start: int, close: int, after: int) -> int:
        """
        Judge a string that is odd, or ends in another window.

        Args:
            start: of its first quote.
            close: of its last one.
            after: of the first mark behind it.

        Returns:
            Where to go on.
        """
        body, end = self._body, len(self._body)
        if close == end:
            if _ONLY_MARKS.match(body, start + 1, end):
                return start + 1
            self._break(start)
            return end
        if after == end or body[after] in _END_OF_NAME_OR_VALUE:
            if after < end and body[after] == COLON and self._is_among_items():
                self._break(start)
            return close + 1
        # One of the two quotes has no other half. If it is the first, structure stands before the second.
        self._break(start)
        content = body[max(start + 1, close - _NAME_BYTES) : close]
        marks = len(content) - len(content.rstrip(_MARKS))
        if content.rstrip(_AROUND).endswith(_BEFORE_STRING):
            for place in range(close - marks, close):
                if body[place] in OPENING:
                    self._read_opening(place, body[place])
                elif body[place] in CLOSING:
                    self._read_closing(place, body[place])
        return close

    def _read_opening(self, place: int, mark: int) -> None:
        body, is_array = self._body, mark == ord("[")
        is_named = is_batch = False
        before = body[max(0, place - _NAME_BYTES) : place]
        if before.rstrip(_AROUND).endswith(b":"):
            is_named = _NAMED.search(before) is not None
        opened = self._open
        after = _end_of(_BLANKS, body, place + 1)
        if not is_array and body.startswith(b"\\", after):
            return  # in a text whose quotes are escaped
        if is_array:
            is_batch = self._is_batch(before, place, is_named=is_named)
            is_named = is_named or is_batch
            if is_batch and len(opened) > 1 and not opened[-1].is_array:
                self._break(place)  # something before the batch never ends
        else:
            is_batch = is_named and _BATCH.search(before) is not None
        if opened and not opened[-1].is_array and not is_named:
            self._break(place)
        if len(opened) >= DEPTH_MAX:
            self._break(place)
        if is_array and is_batch and opened:
            index = opened[-1].place
            if index not in self._judged and not self._is_named_event(index, place):
                self._envelopes.add(index)
            self._judged.add(index)
        opened.append(_Open(is_array, len(self.pieces), is_named))
        kind = Kind.OPEN_ARRAY if is_array else Kind.OPEN_OBJECT
        self.pieces.append(Piece(kind, place, place + 1, is_named, is_batch))
        if not is_array and body[after : after + 1] not in _BEGINS_OBJECT:
            self._break(place + 1)

    def _is_batch(self, before: bytes, place: int, *, is_named: bool) -> bool:
        """Whether an array begins the items of a batch, by the bytes before it."""
        opened = self._open
        is_exact = is_named and _BATCH.search(before) is not None
        if self._has_object:  # the batch of another envelope
            return is_exact and bool(opened) and self._is_envelope_among_items(opened, place)
        if len(opened) < 2:
            return is_exact or (not (opened and opened[0].is_array) and _ends_nearly_in_batch(before))
        if opened[-1].is_array or not is_exact:
            return False
        if all(each.is_array and not each.is_named for each in opened[:-1]):
            return not opened[-1].is_named
        second = self.pieces[opened[1].place].start
        return not opened[0].is_array and (
            _IN_ENVELOPE.search(self._body, max(0, second - _NAME_BYTES), second) is not None
        )

    def _is_envelope_among_items(self, opened: list[_Open], place: int) -> bool:
        """Whether the last open object stands where an item may, and has no field of an event so far."""
        last = opened[-1]
        if last.is_array or last.is_named or len(opened) > 2 * OUTER_DEPTH:
            return False
        for each in opened[:-1]:
            is_batch = each.is_array and self.pieces[each.place].is_batch
            if not (is_batch or each.place in self._envelopes or (each.is_array and not each.is_named)):
                return False
        start = self.pieces[last.place].start
        return len(opened) == 1 or _EVENT_FIELD.search(self._body, start, place) is None

    def _is_named_event(self, index: int, end: int) -> bool:
        """Whether an open object has the field `event` before a place."""
        start = self.pieces[index].end
        stop = min(end, start + WINDOW_BYTES)
        for piece in self.pieces[index + 1 :]:
            if piece.start >= stop or _EVENT.search(self._body, start, piece.start):
                break
            start = piece.end
        return _EVENT.search(self._body, start, stop) is not None

    def _read_closing(self, place: int, mark: int) -> None:
        is_array = mark == ord("]")
        kind = Kind.CLOSE_ARRAY if is_array else Kind.CLOSE_OBJECT
        if not self._open or self._open[-1].is_array != is_array:
            if self._open:
                self._break(place)
            self.pieces.append(Piece(kind, place, place + 1))
            return
        opened = self._open.pop()
        index = opened.place
        first = self.pieces[index]
        if is_array:
            if len(self.pieces) == index + 1 and not first.is_batch:
                self.pieces.pop()  # no object in it
            elif opened.is_named and not first.is_batch and len(self._open) > 1:
                self._reduce(Piece(Kind.VALUE, first.start, place + 1, is_named=True), index)
            else:
                self.pieces.append(Piece(kind, place, place + 1))
        elif index in self._envelopes:
            self.pieces.append(Piece(kind, place, place + 1))
        else:
            self._reduce(Piece(Kind.OBJECT, first.start, place + 1, opened.is_named, first.is_batch), index)

    def _reduce(self, piece: Piece, index: int) -> None:
        """Let a piece stand for all from an index on."""
        if not (self._has_object or piece.is_named) and len(self._open) <= OUTER_DEPTH:
            self._has_object = _EVENT_FIELD.search(self._body, piece.start, piece.end) is not None
        del self.pieces[index:]
        self.pieces.append(piece)

    def _break(self, place: int) -> None:
        self._breaks += 1
        self._open.clear()
        if not self.pieces or self.pieces[-1].kind is not Kind.BREAK:
            self.pieces.append(Piece(Kind.BREAK, place, place))


def _end_of(pattern: "re.Pattern[bytes]", body: bytes, place: int, stop: int | None = None) -> int:
    match = pattern.match(body, place, place + WINDOW_BYTES if stop is None else stop)
    assert match is not None
    return match.end()


def is_nearly_batch(name: str) -> bool:
    """Whether a name is `batch` but for one damaged character."""
    return len(name) <= len(_BATCH_NAME) + 1 and _is_one_letter_off(_OTHER_LETTERS.sub(b"", name.encode()))


def _ends_nearly_in_batch(before: bytes) -> bool:
    """Whether the name `batch`, of which one byte was damaged, stands before an array."""
    return any(
        _is_one_letter_off(_OTHER_LETTERS.sub(b"", before[mark.end() :]))
        for mark in _BEFORE_NAME.finditer(before)
    )


def _is_one_letter_off(letters: bytes) -> bool:
    """Whether letters are those of `batch`, or one was added, taken away or replaced."""
    if letters == _BATCH_NAME or abs(len(letters) - len(_BATCH_NAME)) > 1:
        return letters == _BATCH_NAME
    same = 0
    while same < min(len(letters), len(_BATCH_NAME)) and letters[same] == _BATCH_NAME[same]:
        same += 1
    expected, found = _BATCH_NAME[same:], letters[same:]
    return found[1:] in (expected, expected[1:]) or found == expected[1:]
