"""
Reads the fields of the envelopes of a damaged body: what stands in a batch object beside its items. Pure.

They stand before a batch, or behind its last bracket. What stands behind a bracket of a torn event could be
its own: its depth, and what follows, tell them apart.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from app.ingest.broken_json import Kind, Piece

if TYPE_CHECKING:
    from app.ingest.salvage import Stretch

ENVELOPE_NAMES = frozenset(
    (
        *(b"batch", b"sentAt", b"context", b"integrations", b"writeKey", b"client", b"session", b"epoch"),
        *(b"acknowledgedThrough", b"firstSequence"),
    )
)

STEP_PIECES = 1_000
"""The pieces of one step of a pass, 3 ms."""

STEP_WORK = 64 * 1024
"""What such a step is, in bytes of parsing."""

PART_BYTES_MAX = 64 * 1024
"""A longer part between two brackets is not searched for fields."""

_BLANKS = b" \t\r\n\0"
_BLANK = rb"[ \t\r\n\0]*+"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FIELDS = re.compile(
    rb"(?:[ \t\r\n\0,]*+" + _STRING + _BLANK + rb":" + _BLANK + rb"(?:" + _STRING + rb"|[-+.\w]++|(?=\Z)))*+"
    rb"[ \t\r\n\0,]*+",
    re.DOTALL,
)
_FIELD = re.compile(
    rb"(" + _STRING + rb")" + _BLANK + rb":" + _BLANK + rb"(" + _STRING + rb"|[-+.\w]++)?", re.DOTALL
)
_NAMED = (Kind.OBJECT, Kind.VALUE)
_OPEN = (Kind.OPEN_OBJECT, Kind.OPEN_ARRAY)
_CLOSE = (Kind.CLOSE_OBJECT, Kind.CLOSE_ARRAY)


class Field(NamedTuple):
    """A field of an envelope: where its name and its value stand."""

    name: slice
    value: slice


class EnvelopeFields:
    """The fields of the envelopes of one body."""

    def __init__(self, body: bytes, pieces: Sequence[Piece], roots: set[int], read_end: int) -> None:
        """`roots`: the indexes of the pieces that begin an envelope, filled before the first `read`."""
        self._body = body
        self._pieces = pieces
        self._roots = roots
        self._read_end = read_end
        self.fields: list[Field] = []
        self.parts: list[tuple[int, int]] = []
        """Start and end of each part that belongs to an envelope."""

    def starts(self) -> list[int]:
        """Return where each envelope begins, in order; one if none is known."""
        return sorted(self._pieces[index].start for index in self._roots) or [0]

    def read(self, stretch: "Stretch", level: int) -> Iterator[int]:
        """
        Read the envelopes of the next stretch, whose items have a depth of `level`.

        Yields the work of each step, in bytes.
        """
        pieces, opened, depth = self._pieces, list[int](), stretch.depth
        is_outside, place = False, pieces[stretch.first - 1].end if stretch.first else 0
        for index in range(stretch.first, stretch.end):
            piece = pieces[index]
            if (index - stretch.first) % STEP_PIECES == STEP_PIECES - 1:
                yield STEP_WORK
            if is_outside or self._is_head(opened):
                self._read_part(place, piece.start, piece)
            if piece.kind in _OPEN:
                if index in self._roots or piece.is_batch:
                    self.parts.append((piece.start, piece.end))
                opened.append(index)
                depth += 1
                is_outside = False
            elif piece.kind in _CLOSE:
                depth -= 1
                if opened:
                    opened.pop()
                elif piece.kind is Kind.CLOSE_ARRAY and depth <= level:
                    is_outside = self._is_end(index, stretch.end)
                self._add_bracket(piece, opened, is_outside=is_outside)
            place = piece.end
        if is_outside or self._is_head(opened):
            end = pieces[stretch.end].start if stretch.end < len(pieces) else self._read_end
            self._read_part(place, end, None)

    def _is_head(self, opened: list[int]) -> bool:
        """Whether what is open is nothing but an envelope."""
        return len(opened) == 1 and opened[0] in self._roots

    def _add_bracket(self, piece: Piece, opened: list[int], *, is_outside: bool) -> None:
        """Add a closing bracket that belongs to an envelope."""
        if is_outside or (opened and opened[-1] in self._roots):
            self.parts.append((piece.start, piece.end))

    def _is_end(self, index: int, end: int) -> bool:
        """Whether a bracket ends a batch: in its stretch only fields of the envelope follow."""
        closed = 0
        for place in range(index + 1, end):
            piece = self._pieces[place]
            if place in self._roots:
                return True
            if piece.kind is Kind.CLOSE_OBJECT and not closed:
                closed = 1
            elif not (piece.is_named and piece.kind in _NAMED):
                return False
        return True

    def _read_part(self, start: int, end: int, piece: Piece | None) -> None:
        """Read the fields of one part; the last may have the value `piece`."""
        if end - start > PART_BYTES_MAX:
            return
        match = _FIELDS.match(self._body, start, end)
        if match is None or match.end() < end:
            return
        if (piece is None or not piece.is_named) and self._body[start:end].rstrip(_BLANKS).endswith(b":"):
            return  # the value is damaged
        self.parts.append((start, end))
        for found in _FIELD.finditer(self._body, start, end):
            value = slice(*found.span(2))
            if found[2] is None:
                if piece is None or piece.kind not in _NAMED or found.end() != end:
                    continue
                value = slice(piece.start, piece.end)
                self.parts.append((piece.start, piece.end))
            self.fields.append(Field(slice(*found.span(1)), value))
