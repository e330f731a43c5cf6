"""
Salvage: decides which objects of a damaged body are the items of its batch. Pure.

docs/adr/0022-salvage.md has the rules and their reasons. In short: an item is an object without a name, at
the lowest depth of its stretch, and a stretch lies between two places where something is damaged. What
contains a damaged place, and what stands within that, is never an item.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from app.ingest.broken_json import BrokenJSON, Kind, Piece
from dedupe.model.json_document import read_document

ENVELOPE_NAMES = frozenset(
    (b"batch", b"sentAt", b"context", b"integrations", b"writeKey", b"client", b"session", b"epoch")
    + (b"acknowledgedThrough", b"firstSequence")
)

HEAD_BYTES = 64 * 1024
"""Of a torn event so much is searched for names."""

_NAME = re.compile(rb'"([^"\\]{1,100})"[ \t\r\n\0]*+:')
_EVENT_FIELD = re.compile(rb'"(?:type|event|messageId)"')
_MEMBERS = re.compile(
    rb'(?:[ \t\r\n\0,]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n\0]*+:[ \t\r\n\0]*+'
    rb'(?:"(?:[^"\\]++|\\.)*+"|[-+.\w]++|(?=\Z)))*+[ \t\r\n\0,]*+',
    re.DOTALL,
)
_MEMBER = re.compile(
    rb'("(?:[^"\\]++|\\.)*+")[ \t\r\n\0]*+:[ \t\r\n\0]*+("(?:[^"\\]++|\\.)*+"|[-+.\w]++)?', re.DOTALL
)
_NOTHING = re.compile(
    rb'(?:[ \t\r\n\0,:{}\[\]\xef\xbb\xbf]++|"(?:' + b"|".join(sorted(ENVELOPE_NAMES)) + rb')"?'
    rb'(?:[ \t\r\n\0]*+:[ \t\r\n\0]*+(?:"(?:[^"\\]++|\\.)*+"?|[-+.\w]++)?)?)*+',
    re.DOTALL,
)
_CUT_OFF = re.compile(rb'(?::|[,{][ \t\r\n\0]*"[^"\\]*+")[ \t\r\n\0]*\}[ \t\r\n\0]*\Z')
"""The end of what an additional bracket cut off behind a name."""

HEAD_BLANKS = 64
_OPEN = (Kind.OPEN_OBJECT, Kind.OPEN_ARRAY)
_CLOSE = (Kind.CLOSE_OBJECT, Kind.CLOSE_ARRAY)
_TRIMMED = b" \t\r\n\0,"
_ENDS = ("", "]", "]}")


class _Item(NamedTuple):
    """An object that may be an item: the index of its piece, and its depth."""

    index: int
    depth: int
    is_complete: bool
    is_in_list: bool = False


@dataclass(slots=True)
class _Stretch:
    """What lies between two breaks."""

    first: int
    end: int = 0
    depth: int = 0  # at its beginning
    anchored: list[_Item] = field(default_factory=list)
    """Within a batch whose bracket belongs to the stretch."""
    base: list[_Item] = field(default_factory=list)
    """Within nothing that belongs to the stretch, or in arrays without a name."""
    is_last: bool = False

    @property
    def level(self) -> int | None:
        """The lowest depth of what may be an item."""
        depths = [item.depth for item in self.base or self.anchored]
        return min(depths) if depths else None


class Layout:
    """The items and the envelope of one body, once `BrokenJSON` has read it."""

    def __init__(self, body: bytes, broken: BrokenJSON) -> None:
        self._body = body
        self._pieces = broken.pieces
        self._read_end = broken.end
        self._roots: set[int] = set()  # indexes of the pieces that begin an envelope
        self.items: list[tuple[int, int]] = []
        """Start and end of each complete object that is an item."""
        self.fields: list[tuple[tuple[int, int], tuple[int, int]]] = []
        """Start and end of name and value of each field of an envelope."""
        self._spent: list[tuple[int, int]] = []  # parts of envelopes

    def decide(self) -> None:
        """Find `items` and `fields`."""
        self._find_roots()
        stretches = self._stretches()
        level: int | None = None  # of the items before
        taken: list[int] = []
        for number, stretch in enumerate(stretches):
            following = (each.level for each in stretches[number + 1 :] if each.level is not None)
            accepted = [item for item in stretch.anchored if item.is_complete]
            if stretch.base:
                accepted += self._accepted(stretch, level, next(following, None))
            if stretch.anchored or accepted:
                level = min(item.depth for item in (*stretch.anchored, *accepted))
            taken += [item.index for item in accepted]
            self._read_envelopes(stretch, 2 if level is None else level)
        cut_off = 0
        for index in sorted(taken):
            if index < cut_off:
                continue
            if (
                index
                and self._may_be_event(self._pieces[index - 1])
                and self._is_cut_off(self._pieces[index])
            ):
                cut_off = self._end_of_run(index)
            elif self._is_whole(index):
                self.items.append((self._pieces[index].start, self._pieces[index].end))

    def rest(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each part between what was taken that has content."""
        place = 0
        for start, end in sorted([*self.items, *self._spent, (len(self._body),) * 2]):
            if start > place and (part := self._trimmed(place, start)):
                yield part
            place = max(place, end)

    def _trimmed(self, start: int, end: int) -> tuple[int, int] | None:
        content = self._body[start:end]
        match = _NOTHING.match(content)
        if match is not None and match.end() == len(content):
            return None
        start += len(content) - len(content.lstrip(_TRIMMED))
        return start, end - (len(content) - len(content.rstrip(_TRIMMED)))

    # ---- stretches

    def _find_roots(self) -> None:
        pieces = self._pieces
        opened: list[int] = []
        for index, piece in enumerate(pieces):
            if piece.kind is Kind.OPEN_ARRAY and piece.is_batch and opened:
                root = pieces[opened[-1]]
                if root.kind is Kind.OPEN_OBJECT and not root.is_named:
                    self._roots.add(opened[-1])
            if piece.kind in (Kind.OPEN_ARRAY, Kind.OPEN_OBJECT):
                opened.append(index)
            elif piece.kind in (Kind.CLOSE_ARRAY, Kind.CLOSE_OBJECT) and opened:
                opened.pop()
            elif piece.kind is Kind.BREAK:
                opened.clear()

    def _stretches(self) -> list[_Stretch]:
        found = [_Stretch(0)]
        depth, opened = 0, list[int]()
        for index, piece in enumerate(self._pieces):
            stretch = found[-1]
            match piece.kind:
                case Kind.BREAK:
                    opened.clear()
                    stretch.end = index
                    found.append(_Stretch(index + 1, depth=depth))
                case Kind.OBJECT:
                    self._place(stretch, opened, _Item(index, depth, is_complete=True))
                case Kind.OPEN_OBJECT | Kind.OPEN_ARRAY:
                    if piece.kind is Kind.OPEN_OBJECT and index not in self._roots:
                        self._place(stretch, opened, _Item(index, depth, is_complete=False))
                    opened.append(index)
                    depth += 1
                case Kind.CLOSE_OBJECT | Kind.CLOSE_ARRAY:
                    depth -= 1
                    if opened:
                        opened.pop()
        found[-1].end = len(self._pieces)
        found[-1].is_last = self._read_end == len(self._body)
        return found

    def _place(self, stretch: _Stretch, opened: list[int], item: _Item) -> None:
        """Add an object to its stretch, unless something that contains it tells that it is no item."""
        if len(opened) > 3:
            return
        pieces, piece = self._pieces, self._pieces[item.index]
        around = [pieces[index] for index in opened]
        if piece.is_named:
            is_batch = piece.is_batch and len(opened) <= 1 and all(not each.is_named for each in around)
            if is_batch and piece.kind is Kind.OBJECT and stretch.first == 0:
                stretch.anchored.append(item)
            return
        if all(each.kind is Kind.OPEN_ARRAY and not each.is_named for each in around):
            is_event = not item.is_complete or self._may_be_event(piece)
            if len(around) > 1 and not self._is_list(around[-1]):
                return
            if opened and opened[0] == 0:
                stretch.anchored.append(item)  # the body is an array
            elif is_event:
                stretch.base.append(item._replace(depth=item.depth - len(around), is_in_list=bool(around)))
            return
        if len(around) > 1 and around[-1].kind is Kind.OPEN_ARRAY and not around[-1].is_named:
            if not self._is_list(around[-1]):
                return
            around.pop()
        if around[-1].kind is Kind.OPEN_ARRAY and around[-1].is_batch:
            outer = opened[: len(around) - 1]
            if all(index in self._roots or pieces[index].kind is Kind.OPEN_ARRAY for index in outer):
                stretch.anchored.append(item)

    def _is_list(self, piece: Piece) -> bool:
        """Whether an array without a name is an item of a batch, a list of events, and not the rest of one."""
        return not self._is_cut_off(piece)

    def _is_cut_off(self, piece: Piece) -> bool:
        """Whether what stands before an object or array ended before a value."""
        return _CUT_OFF.search(self._body, max(0, piece.start - HEAD_BLANKS), piece.start) is not None

    def _may_be_event(self, piece: Piece) -> bool:
        return _EVENT_FIELD.search(self._body, piece.start, piece.end) is not None

    # ---- which are items

    def _accepted(self, stretch: _Stretch, before: int | None, after: int | None) -> list[_Item]:
        """
        Return the complete objects of a stretch that are items.

        Args:
            stretch: with a base.
            before: the depth of the items before it; None without any.
            after: the lowest depth of the next stretch; None without one.
        """
        level = min(item.depth for item in stretch.base)
        lowest = [item for item in stretch.base if item.depth == level]
        ends = self._ends_after(lowest[-1].index, stretch.end)
        if ends not in _ENDS:
            return []
        above = 0 if before is None else level - before
        if above > 0 and not (stretch.is_last and ends):
            below = 2 if after is None else level - after
            if (above > 1 and below > 0) or lowest[0].is_in_list:
                return []
        if before is None and ((ends and not stretch.is_last) or (after is not None and level - after > 1)):
            return []
        complete = [item for item in lowest if item.is_complete]
        if complete and complete[0] is lowest[0] and self._is_rest_of_torn(stretch, complete[0]):
            return complete[1:]
        return complete

    def _ends_after(self, index: int, end: int) -> str:
        """Return the closing brackets that follow an object in its stretch, up to the next envelope."""
        depth, found = 0, ""
        for place in range(index + (self._pieces[index].kind is not Kind.OBJECT), end):
            piece = self._pieces[place]
            match piece.kind:
                case Kind.OPEN_OBJECT | Kind.OPEN_ARRAY:
                    if place in self._roots:
                        break
                    depth += 1
                case Kind.CLOSE_OBJECT | Kind.CLOSE_ARRAY if depth:
                    depth -= 1
                case Kind.CLOSE_OBJECT:
                    found += "}"
                case Kind.CLOSE_ARRAY:
                    found += "]"
            if len(found) > 2:
                break
        return found

    def _end_of_run(self, index: int) -> int:
        """Return the index of the first piece behind objects that follow each other."""
        while index < len(self._pieces) and self._pieces[index].kind is Kind.OBJECT:
            index += 1
        return index

    def _is_rest_of_torn(self, stretch: _Stretch, item: _Item) -> bool:
        """Whether the first object of a stretch is the rest of the event before it, which an additional `{` tore."""
        index, pieces = item.index, self._pieces
        if index != stretch.first or index < 2 or pieces[index - 1].kind is not Kind.BREAK:
            return False
        head, depth = index - 2, 0
        while head >= 0 and (depth or pieces[head].kind not in _OPEN):
            depth += (pieces[head].kind in _CLOSE) - (pieces[head].kind in _OPEN)
            if pieces[head].kind is Kind.BREAK:
                return False
            head -= 1
        if head < 0 or pieces[head].kind is not Kind.OPEN_OBJECT or head in self._roots:
            return False
        torn = self._names(head, index)
        if head == 0 and torn <= ENVELOPE_NAMES:
            return False
        return bool(torn) and torn.isdisjoint(self._names_in(pieces[index]))

    def _is_whole(self, index: int) -> bool:
        """Whether no more of the same event follows an object, which an additional `}` tore."""
        pieces = self._pieces
        if index + 2 >= len(pieces) or pieces[index + 1].kind is not Kind.BREAK:
            return True
        end, depth = index + 2, 0
        while end < len(pieces) and (depth or pieces[end].kind not in _CLOSE):
            if pieces[end].kind is Kind.BREAK or not (depth or pieces[end].is_named):
                return True
            depth += (pieces[end].kind in _OPEN) - (pieces[end].kind in _CLOSE)
            end += 1
        if end + 1 >= len(pieces) or pieces[end].kind is not Kind.CLOSE_OBJECT:
            return True
        names = self._names(index + 1, end)
        return not names or not names.isdisjoint(self._names_in(pieces[index]))

    def _names(self, first: int, last: int) -> set[bytes]:
        """Return the names that stand between pieces."""
        found: set[bytes] = set()
        for piece, following in zip(
            self._pieces[first:last], self._pieces[first + 1 : last + 1], strict=True
        ):
            stop = min(following.start, piece.end + HEAD_BYTES)
            found.update(_NAME.findall(self._body, piece.end, stop))
        return found

    def _names_in(self, piece: Piece) -> set[bytes]:
        """Return the names at the top level of a complete object."""
        return names_of(self._body[piece.start : piece.end])

    # ---- the envelope

    def _read_envelopes(self, stretch: _Stretch, level: int) -> None:
        """Find the fields of envelopes in a stretch whose items have a depth of `level`."""
        pieces, opened, depth = self._pieces, list[int](), stretch.depth
        is_outside, place = False, self._begin_of(stretch)
        for index in range(stretch.first, stretch.end):
            piece = pieces[index]
            if is_outside or (len(opened) == 1 and opened[0] in self._roots):
                self._read_fields(place, piece.start, piece)
            match piece.kind:
                case Kind.OPEN_OBJECT | Kind.OPEN_ARRAY:
                    if index in self._roots or piece.is_batch:
                        self._spent.append((piece.start, piece.end))
                    opened.append(index)
                    depth += 1
                    is_outside = False
                case Kind.CLOSE_OBJECT | Kind.CLOSE_ARRAY:
                    depth -= 1
                    if opened:
                        opened.pop()
                    elif piece.kind is Kind.CLOSE_ARRAY and depth <= level:
                        is_outside = self._is_end(index, stretch.end)
                    if is_outside or not opened or opened[-1] in self._roots:
                        self._spent.append((piece.start, piece.end))
            place = piece.end
        if is_outside:
            self._read_fields(place, self._end_of(stretch), None)

    def _is_end(self, index: int, end: int) -> bool:
        """Whether a closing bracket ends a batch: only fields of its envelope follow in the stretch."""
        closed = 0
        for place in range(index + 1, end):
            piece = self._pieces[place]
            if place in self._roots:
                return True
            if piece.kind is Kind.CLOSE_OBJECT:
                closed += 1
            elif not (piece.is_named and piece.kind in (Kind.OBJECT, Kind.VALUE)):
                return False
            if closed > 1:
                return False
        return True

    def _begin_of(self, stretch: _Stretch) -> int:
        return self._pieces[stretch.first - 1].end if stretch.first else 0

    def _end_of(self, stretch: _Stretch) -> int:
        return self._pieces[stretch.end].start if stretch.end < len(self._pieces) else self._read_end

    def _read_fields(self, start: int, end: int, piece: Piece | None) -> None:
        """Read the fields in a part of the envelope, the last of which may have the value `piece`."""
        match = _MEMBERS.match(self._body, start, end)
        if match is None or match.end() < end:
            return
        self._spent.append((start, end))
        for field_ in _MEMBER.finditer(self._body, start, end):
            value = field_.span(2)
            if value[0] < 0:
                if piece is None or piece.kind not in (Kind.OBJECT, Kind.VALUE) or field_.end() != end:
                    continue
                value = (piece.start, piece.end)
                self._spent.append(value)
            self.fields.append((field_.span(1), value))


def names_of(content: bytes) -> set[bytes]:
    """Return the names at the top level of an object, as JSON without quotes; empty if it is not JSON."""
    try:
        document: Any = read_document(content)
    except ValueError:
        return set()
    return {orjson.dumps(name)[1:-1] for name in document} if isinstance(document, dict) else set()
