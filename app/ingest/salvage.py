"""
Salvage: decides which objects of a damaged body are the items of its batch. Pure.

docs/adr/0022-salvage.md has the rules and their reasons. In short: an item is an object without a name, at
the lowest depth of its stretch, and a stretch lies between two places where something is damaged. What
contains a damaged place, and what stands within that, is never an item.

app.ingest.salvaged makes events and fragments of what is found.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from app.ingest.broken_json import BrokenJSON, Kind, Piece
from app.ingest.envelope import ENVELOPE_NAMES, STEP_PIECES, STEP_WORK, EnvelopeFields
from app.ingest.torn_events import TornEvents

WORK_BYTES = 64
"""Of a piece so many are searched for an event's names in the time that a piece takes otherwise."""

TRIMMED = b" \t\r\n\0,"
"""Nobody misses it at the ends of a fragment."""

PART_BYTES_MAX = 64 * 1024
"""A longer part is only searched for other bytes than marks, and it is trimmed by no more."""

SEARCH_RATE = 8
"""So many bytes are searched in the time in which one is parsed."""

_CONTENT = re.compile(rb"[^ \t\r\n\0,:{}\[\]\xef\xbb\xbf]")
_NOTHING = re.compile(
    rb'(?:[ \t\r\n\0,:{}\[\]\xef\xbb\xbf]++|"(?:' + b"|".join(sorted(ENVELOPE_NAMES)) + rb')"?'
    rb'(?:[ \t\r\n\0]*+:[ \t\r\n\0]*+(?:"(?:[^"\\]++|\\.)*+"?|[-+.\w]++)?)?)*+',
    re.DOTALL,
)
_EVENT_FIELD = re.compile(rb'"(?:type|event|messageId)"')
_ENDS = ("", "]", "]}")
"""The brackets that may follow the last item: those of its batch."""

_AROUND_MAX = 5
"""What may contain an item: an envelope, its batch, another envelope with a batch in it, a list."""

_OPEN = (Kind.OPEN_OBJECT, Kind.OPEN_ARRAY)
_CLOSE = (Kind.CLOSE_OBJECT, Kind.CLOSE_ARRAY)


class _Item(NamedTuple):
    """An object that may be an item: the index of its piece, and its depth."""

    piece: int
    depth: int
    is_complete: bool
    is_in_list: bool = False


@dataclass(slots=True)
class Stretch:
    """What lies between two breaks."""

    first: int
    """The index of its first piece."""
    end: int = 0
    depth: int = 0
    """At its beginning."""
    anchored: list[_Item] = field(default_factory=list)
    """Within a batch whose bracket belongs to the stretch."""
    base: list[_Item] = field(default_factory=list)
    """Within nothing that belongs to the stretch, or in arrays without a name."""
    is_last: bool = False
    level: int | None = None
    """The lowest depth of what may be an item."""

    def close(self, end: int) -> None:
        """Set its end and its level."""
        self.end = end
        self.level = min((item.depth for item in self.base or self.anchored), default=None)


class Layout:
    """The items and the envelopes of one body, once `BrokenJSON` has read it."""

    def __init__(self, body: bytes, broken: BrokenJSON) -> None:
        self._body = body
        self._pieces = broken.pieces
        self._read_end = broken.end
        self._roots: set[int] = set()  # indexes of the pieces that begin an envelope
        self._torn = TornEvents(body, broken.pieces, self._roots)
        self.envelope = EnvelopeFields(body, broken.pieces, self._roots, broken.end)
        self.items: list[tuple[int, int]] = []
        """Start and end of each complete object that is an item, in order."""

    def decide(self) -> Iterator[int]:
        """Find `items` and the fields of `envelope`; yield the work of each step, in bytes."""
        yield from self._find_roots()
        stretches = [Stretch(0)]
        yield from self._find_stretches(stretches)
        after: list[int | None] = [None] * len(stretches)
        for number in range(len(stretches) - 1, 0, -1):
            level = stretches[number].level
            after[number - 1] = after[number] if level is None else level
        before: int | None = None  # the depth of the items that come before
        taken: list[int] = []
        work = 0
        for stretch, following in zip(stretches, after, strict=True):
            accepted = [item for item in stretch.anchored if item.is_complete]
            if stretch.base:
                accepted += self._accepted(stretch, before, following)
            if stretch.anchored or accepted:
                before = min(item.depth for item in (*stretch.anchored, *accepted))
            taken += [item.piece for item in accepted]
            yield from self.envelope.read(stretch, 2 if before is None else before)
            work += 3 * (stretch.end - stretch.first) + 10
            if work > STEP_PIECES:
                yield STEP_WORK
                work = 0
        yield from self._take(sorted(taken))

    def _take(self, indexes: list[int]) -> Iterator[int]:
        """Add the items without those that are a part of a torn event."""
        cut_off = 0
        for number, index in enumerate(indexes):
            if number % STEP_PIECES == STEP_PIECES - 1:
                yield STEP_WORK
            if index < cut_off:
                continue
            piece = self._pieces[index]
            if index and self._may_be_event(self._pieces[index - 1]) and self._torn.is_cut_off(piece):
                cut_off = self._torn.end_of_run(index)
            elif self._torn.is_whole(index):
                self.items.append((piece.start, piece.end))

    # ---- stretches

    def _find_roots(self) -> Iterator[int]:
        pieces, opened = self._pieces, list[int]()
        for index, piece in enumerate(pieces):
            if index % STEP_PIECES == STEP_PIECES - 1:
                yield STEP_WORK
            if piece.kind in _OPEN:
                if piece.kind is Kind.OPEN_ARRAY and piece.is_batch:
                    place = opened[-1] if opened else 0  # a break after the envelope's beginning
                    if pieces[place].kind is Kind.OPEN_OBJECT and not pieces[place].is_named:
                        self._roots.add(place)
                opened.append(index)
            elif piece.kind in _CLOSE and opened:
                opened.pop()
            elif piece.kind is Kind.BREAK:
                opened.clear()

    def _find_stretches(self, found: list[Stretch]) -> Iterator[int]:
        depth, opened, work = 0, list[int](), 0
        for index, piece in enumerate(self._pieces):
            work += 1 + (piece.end - piece.start) // WORK_BYTES
            if work > STEP_PIECES:
                yield STEP_WORK
                work = 0
            if piece.kind is Kind.BREAK:
                opened.clear()
                found[-1].close(index)
                found.append(Stretch(index + 1, depth=depth))
            elif piece.kind is Kind.OBJECT:
                self._place(found[-1], opened, _Item(index, depth, is_complete=True))
            elif piece.kind in _OPEN:
                if piece.kind is Kind.OPEN_OBJECT and index not in self._roots:
                    self._place(found[-1], opened, _Item(index, depth, is_complete=False))
                opened.append(index)
                depth += 1
            elif piece.kind in _CLOSE:
                depth -= 1
                if opened:
                    opened.pop()
        found[-1].close(len(self._pieces))
        found[-1].is_last = self._read_end == len(self._body)

    def _place(self, stretch: Stretch, opened: list[int], item: _Item) -> None:
        """Add an object to its stretch, unless something that contains it tells that it is no item."""
        pieces, piece = self._pieces, self._pieces[item.piece]
        if piece.is_named:
            if piece.is_batch and item.is_complete and stretch.first == 0 and self._is_outermost(opened):
                stretch.anchored.append(item)  # the one item of a batch that is no array
        elif len(opened) <= _AROUND_MAX:
            self._place_unnamed(stretch, opened, item, [pieces[index] for index in opened])

    def _place_unnamed(self, stretch: Stretch, opened: list[int], item: _Item, around: list[Piece]) -> None:
        pieces, piece = self._pieces, self._pieces[item.piece]
        if around and _is_list(around[-1]) and len(around) > 1:
            if self._torn.is_cut_off(around[-1]):
                return
            around.pop()
        if all(map(_is_list, around)):
            if opened and opened[0] == 0:
                stretch.anchored.append(item)  # the body is an array
            elif not item.is_complete or self._may_be_event(piece):
                depth = item.depth - len(opened)
                stretch.base.append(item._replace(depth=depth, is_in_list=bool(opened)))
        elif around[-1].kind is Kind.OPEN_ARRAY and around[-1].is_batch:
            outer = opened[: len(around) - 1]
            if all(
                index in self._roots or _is_list(pieces[index]) or pieces[index].is_batch for index in outer
            ):
                stretch.anchored.append(item)

    def _is_outermost(self, opened: list[int]) -> bool:
        return len(opened) <= 1 and all(not self._pieces[index].is_named for index in opened)

    def _may_be_event(self, piece: Piece) -> bool:
        return _EVENT_FIELD.search(self._body, piece.start, piece.end) is not None

    # ---- which are items

    def _accepted(self, stretch: Stretch, before: int | None, after: int | None) -> list[_Item]:
        """
        Return the complete objects of a stretch that are items.

        Args:
            stretch: with a base.
            before: the depth of the items before it; None without any.
            after: the level of the next stretch that has one.
        """
        level = min(item.depth for item in stretch.base)
        lowest = [item for item in stretch.base if item.depth == level]
        ends = self._ends_after(lowest[-1].piece, stretch.end)
        if ends not in _ENDS:
            return []
        is_end = stretch.is_last and bool(ends)  # of the body, so the depth is known from there
        if before is None:
            if (ends and not is_end) or (after is not None and level - after > 1):
                return []
        elif level > before and not is_end:
            is_lower = after is not None and level - after <= 0
            if lowest[0].is_in_list or (level - before > 1 and not is_lower):
                return []
        complete = [item for item in lowest if item.is_complete]
        is_first = bool(complete) and complete[0] is lowest[0] and complete[0].piece == stretch.first
        return complete[1:] if is_first and self._torn.is_rest(complete[0].piece) else complete

    def _ends_after(self, index: int, end: int) -> str:
        """Return the closing brackets that follow an object in its stretch, up to the next envelope."""
        depth, found = 0, ""
        for place in range(index + (self._pieces[index].kind is not Kind.OBJECT), end):
            kind = self._pieces[place].kind
            if kind in _OPEN:
                if place in self._roots:
                    break
                depth += 1
            elif kind in _CLOSE:
                if depth:
                    depth -= 1
                else:
                    found += "}" if kind is Kind.CLOSE_OBJECT else "]"
            if len(found) > max(map(len, _ENDS)):
                break
        return found


def _is_list(piece: Piece) -> bool:
    """Whether a piece begins an array without a name."""
    return piece.kind is Kind.OPEN_ARRAY and not piece.is_named


def remains(body: bytes, taken: list[tuple[int, int]]) -> Iterator[tuple[int, int] | int]:
    """
    Yield start and end of each part between what was taken that has a content of its own.

    Yields the work of each step besides, in bytes.
    """
    place = 0
    for number, (start, end) in enumerate((*sorted(taken), (len(body), len(body)))):
        if number % STEP_PIECES == STEP_PIECES - 1:
            yield STEP_WORK
        if start - place > PART_BYTES_MAX:
            yield (start - place) // SEARCH_RATE
            found = _CONTENT.search(body, place, start)
            if found is not None:
                first = place if found.start() - place > PART_BYTES_MAX else _trimmed(body, place, start)[0]
                yield first, start
        elif start > place:
            first, last = _trimmed(body, place, start)
            if first < last and not _is_nothing(body, first, last):
                yield first, last
        place = max(place, end)


def _trimmed(body: bytes, start: int, end: int) -> tuple[int, int]:
    """Return a part without TRIMMED bytes at its ends, of which PART_BYTES_MAX are looked at."""
    part = body[start : min(end, start + PART_BYTES_MAX)]
    first = start + len(part) - len(part.lstrip(TRIMMED))
    part = body[max(first, end - PART_BYTES_MAX) : end]
    return first, end - (len(part) - len(part.rstrip(TRIMMED)))


def _is_nothing(body: bytes, start: int, end: int) -> bool:
    """Whether a part consists of marks and fields of an envelope."""
    match = _NOTHING.match(body, start, end)
    return match is not None and match.end() == end
