"""
Finds the ends of values in JSON text, in bounded steps, without parsing it. Pure.

The functions trust brackets and strings only. What they find in text that is no JSON is of no meaning, and
the parser refuses it.
"""

import re
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import TypeAlias

from app.http.errors import InvalidJSONError

WINDOW_BYTES = 64 * 1024
"""Looked at between two steps: 5 ms at most."""

FIRST_WINDOW_BYTES = 256
"""The first look into a container, and each next one is twice as long: most are short."""

STOP_WORK_BYTES = 256
"""The work of each stop, as bytes."""

DEPTH_MAX = 1024
"""The parser refuses deeper documents."""

PLAIN_LEVELS = 34
"""Containers of so many levels are passed by one expression: all that an event may have."""

Steps: TypeAlias = Generator[int, None, None]
"""Yields the bytes of each step that is done."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'


def _elements() -> bytes:
    """Return an expression for the elements of an array that are followed by a comma."""
    inner = rb"(?!)"
    for _ in range(PLAIN_LEVELS):
        inner = rb'[\[{](?:[^"\[\]{}]++|%b|%b)*+[\]}]' % (_STRING, inner)
    return rb'(?:(?:[^"\[\]{},]++|%b|%b)*+,)' % (_STRING, inner)


_ELEMENT = re.compile(_elements(), re.DOTALL)
_ELEMENTS = re.compile(_elements() + rb"*+", re.DOTALL)
_STRINGS = re.compile(_STRING, re.DOTALL)
_OUTSIDE_OF_CUT_STRINGS = re.compile(rb'(?:[^"]++|%b)*+' % _STRING, re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WITHIN_ELEMENT = re.compile(rb'(?:[^"\[\]{},]++|%b)*+' % _STRING, re.DOTALL)
_WITHIN_FIELDS = re.compile(rb'(?:[^"\[\]{}]++|%b)*+' % _STRING, re.DOTALL)
_BRACKETS = {
    count: re.compile(rb'(?:(?:[^"\[\]{}]++|%b)*+[\[\]{}]){%d}' % (_STRING, count), re.DOTALL)
    for count in (64, 8, 1)
}
"""Expressions for so many brackets, and what is before each: most are passed by the largest."""

_DEPTHS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS = bytes(sorted(set(range(256)) - set(_DEPTHS)))
_QUOTE, _BACKSLASH = b'"\\'


def elements_end(text: bytes, place: int, end: int) -> int:
    """Return the place behind the last comma after whole, not too deep elements; `place` without one."""
    match = _ELEMENTS.match(text, place, end)
    assert match is not None
    return match.end()


def split_elements(text: bytes, count: int) -> Iterator[int]:
    """Yield the places behind the commas of the first `count` elements, as elements_end finds them."""
    place = 0
    for _ in range(count):
        match = _ELEMENT.match(text, place)
        if match is None:
            return
        place = match.end()
        yield place


class Scan:
    """A place in a text, outside of strings."""

    def __init__(self, text: bytes, place: int) -> None:
        self.text = text
        self.place = place
        self._work = 0

    def to_bracket(self) -> Steps:
        """Go to the next bracket, or to the end."""
        yield from self._to_mark(_WITHIN_FIELDS)

    def past_element(self) -> Steps:
        """Go to the comma or closing bracket behind an element. Raises InvalidJSONError: there is none."""
        while True:
            yield from self._to_mark(_WITHIN_ELEMENT)
            if self.place == len(self.text):
                raise InvalidJSONError
            if _DEPTHS.get(self.text[self.place]) != 1:
                return
            yield from self.past_container()

    def _to_mark(self, within: "re.Pattern[bytes]") -> Steps:
        """Go to what an expression does not pass, unless it is a string that is longer than a window."""
        text, end = self.text, len(self.text)
        while self.place < end:
            place, window_end = self.place, self.place + WINDOW_BYTES
            self.place = _end(within, text, place, window_end)
            yield from self._worked(self.place - place)
            if self.place < min(end, window_end):
                if text[self.place] != _QUOTE:
                    return
                yield from self._past_string()

    def past_container(self) -> Steps:
        """Go behind the container that begins here. Raises InvalidJSONError: no end, or too deep."""
        text, end = self.text, len(self.text)
        self.place += 1
        depth, window_bytes = 1, FIRST_WINDOW_BYTES
        while self.place < end:
            place = self.place
            stop = _end(_OUTSIDE_OF_CUT_STRINGS, text, place, place + window_bytes)
            part = text[place:stop]
            brackets = _STRINGS.sub(b"", part).translate(None, _OTHERS)
            depths = list(accumulate(map(_DEPTHS.__getitem__, brackets), initial=depth))
            if 0 in depths:
                self.place = place + _nth_bracket(part, depths.index(0))
                yield from self._worked(stop - place)
                return
            if max(depths) > DEPTH_MAX:
                break
            depth, self.place = depths[-1], stop
            if stop < end and text[stop] == _QUOTE:
                yield from self._past_string()
            yield from self._worked(stop - place)
            window_bytes = min(2 * window_bytes, WINDOW_BYTES)
        raise InvalidJSONError

    def _past_string(self) -> Steps:
        """Go behind the string that begins here, or to the end."""
        text, end = self.text, len(self.text)
        self.place += 1
        while self.place < end:
            self.place = _end(_REST_OF_STRING, text, self.place, self.place + WINDOW_BYTES)
            if self.place < end and text[self.place] == _QUOTE:
                self.place += 1
                return
            if self.place == end - 1 and text[self.place] == _BACKSLASH:
                self.place = end
            yield from self._worked(WINDOW_BYTES)

    def _worked(self, size_bytes: int) -> Steps:
        """Yield if a step is done."""
        self._work += size_bytes + STOP_WORK_BYTES
        if self._work >= WINDOW_BYTES:
            self._work = 0
            yield WINDOW_BYTES


def _end(expression: "re.Pattern[bytes]", text: bytes, place: int, end: int) -> int:
    match = expression.match(text, place, end)
    assert match is not None
    return match.end()


def _nth_bracket(text: bytes, number: int) -> int:
    """Return the place behind the bracket of this number, from 1, outside of strings."""
    place = 0
    for count, expression in _BRACKETS.items():
        for _ in range(number // count):
            place = _end(expression, text, place, len(text))
        number %= count
    return place
