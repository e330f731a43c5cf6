"""
Tells what belongs to a torn event, though its brackets are those of an event. Pure.

One bracket too many splits an event into two parts that look whole: `{"type":"track",{"messageId":"1"}` and
`{"type":"track"},"messageId":"1"}`. Two events have a name in common, such as `type`; two parts of one event
never have.
"""

import re
from collections.abc import Sequence

import orjson

from app.ingest.broken_json import Kind, Piece
from app.ingest.envelope import ENVELOPE_NAMES
from dedupe.model.json_document import read_document

HEAD_BYTES = 64 * 1024
"""Of what stands between two pieces so much is searched for names."""

BEFORE_BYTES = 64
"""Of what stands before a value so much is looked at."""

_NAME = re.compile(rb'"([^"\\]{1,100})"[ \t\r\n\0]*+:')
_CUT_OFF = re.compile(rb'(?::|[,{][ \t\r\n\0]*"[^"\\]*+")[ \t\r\n\0]*\}[ \t\r\n\0]*\Z')
_OPEN = (Kind.OPEN_OBJECT, Kind.OPEN_ARRAY)
_CLOSE = (Kind.CLOSE_OBJECT, Kind.CLOSE_ARRAY)


class TornEvents:
    """The torn events of one body."""

    def __init__(self, body: bytes, pieces: Sequence[Piece], roots: set[int]) -> None:
        """`roots`: the indexes of the pieces that begin an envelope."""
        self._body = body
        self._pieces = pieces
        self._roots = roots

    def is_rest(self, index: int) -> bool:
        """Whether the first object after a break is the rest of the event before it, torn by a `{`."""
        pieces = self._pieces
        head, depth = index - 2, 0
        while head >= 0 and (depth or pieces[head].kind not in _OPEN):
            if pieces[head].kind is Kind.BREAK:
                return False
            depth += (pieces[head].kind in _CLOSE) - (pieces[head].kind in _OPEN)
            head -= 1
        if (
            head < 0
            or pieces[head].kind is not Kind.OPEN_OBJECT
            or pieces[head].is_named
            or head in self._roots
        ):
            return False
        torn = self._names_between(head, index)
        if head == 0 and torn <= ENVELOPE_NAMES:
            return False
        return bool(torn) and torn.isdisjoint(self._names_in(pieces[index]))

    def is_whole(self, index: int) -> bool:
        """Whether no more of the same event follows an object, torn off by a `}`."""
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
        names = self._names_between(index + 1, end)
        return not names or not names.isdisjoint(self._names_in(pieces[index]))

    def is_cut_off(self, piece: Piece) -> bool:
        """Whether what stands before an object or array ended before a value, so that this is the value."""
        return _CUT_OFF.search(self._body, max(0, piece.start - BEFORE_BYTES), piece.start) is not None

    def end_of_run(self, index: int) -> int:
        """Return the index of the first piece behind objects that follow each other."""
        while index < len(self._pieces) and self._pieces[index].kind is Kind.OBJECT:
            index += 1
        return index

    def _names_between(self, first: int, last: int) -> set[bytes]:
        """Return the names that stand between pieces."""
        found: set[bytes] = set()
        for piece, following in zip(
            self._pieces[first:last], self._pieces[first + 1 : last + 1], strict=True
        ):
            stop = min(following.start, piece.end + HEAD_BYTES)
            found.update(_NAME.findall(self._body, piece.end, stop))
        return found

    def _names_in(self, piece: Piece) -> set[bytes]:
        """Return the names at the top level of a complete object; none if it is not JSON."""
        try:
            document = read_document(self._body[piece.start : piece.end])
        except ValueError:
            return set()
        return {orjson.dumps(name)[1:-1] for name in document} if isinstance(document, dict) else set()
