"""
JSON of any depth that the parser accepts.

orjson reads 1024 levels and writes 254. A deeper document is rejected, and must be written for the
quarantine.
"""

from itertools import accumulate
from typing import Any

import orjson

from dedupe.model.json_number import STORED, NumberReading, as_number

CUT_LEVELS = 32
"""
The levels of one call of orjson.dumps: after a Fragment, orjson 3.13 reserves 64 bytes, and writes one for
each closing bracket without a check. With more levels it would write past its buffer, and crash the process.
"""

PLAIN_ROUNDS = 2
"""Rounds that remove the innermost containers, which are the most, before the rest is counted one by one."""

_NO_MARKS = bytes(sorted(set(range(256)) - set(b'[]{}"')))
_AS_ARRAYS = bytes.maketrans(b"{}", b"[]")
_STEPS = {ord("["): 1, ord("]"): -1}


def is_deeper(document: object, levels: int) -> bool:
    """Whether the document nests containers more than `levels` deep; a flat object has one level."""
    layer = [document] if type(document) in (dict, list) else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            child
            for node in layer
            for child in (node.values() if type(node) is dict else node)  # type: ignore[attr-defined]
            if type(child) is dict or type(child) is list
        ]
    return bool(layer)


def is_deeper_json(text: bytes, levels: int) -> bool:
    """Return the same as is_deeper for JSON that orjson wrote: faster for long texts."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(_AS_ARRAYS, _NO_MARKS).replace(b'""', b"")
    if b'"' in marks:  # strings with brackets
        marks = b"".join(marks.split(b'"')[::2])
    for _ in range(min(levels, PLAIN_ROUNDS)):
        marks = marks.replace(b"[]", b"")
        levels -= 1
    return max(accumulate(map(_STEPS.__getitem__, marks)), default=0) > levels


def dumps_any(document: Any) -> bytes:
    """Return the document as JSON with sorted keys, at any depth; deep parts of `document` are replaced."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        if (number := as_number(document)) is not None:
            document = STORED(number.read())
        elif type(document) is dict or type(document) is list:
            if not NumberReading(document).all().is_too_deep:
                return orjson.dumps(document, default=STORED, option=orjson.OPT_SORT_KEYS)
            _replace_deep_parts(document)
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _replace_deep_parts(document: Any) -> None:
    """
    Replace every container at a multiple of CUT_LEVELS by its JSON, the deepest ones first.

    Numbers that orjson refuses are replaced by what is stored of them.
    """
    cuts: list[tuple[int, Any, Any]] = []
    stack = [(1, document)]
    while stack:
        depth, node = stack.pop()
        for place, child in node.items() if type(node) is dict else enumerate(node):
            if type(child) is dict or type(child) is list:
                stack.append((depth + 1, child))
                if depth % CUT_LEVELS == 0:
                    cuts.append((depth, node, place))
            elif (number := as_number(child)) is not None:
                node[place] = STORED(number.read())
    for _, node, place in sorted(cuts, key=lambda cut: cut[0], reverse=True):
        node[place] = orjson.Fragment(orjson.dumps(node[place], option=orjson.OPT_SORT_KEYS))
