"""Finds the write key of an event that is too expensive to parse, in bounded steps. Pure."""

import re
from collections.abc import Generator

from app.http.errors import InvalidJSONError
from app.http.json_scan import Scan
from app.ingest.items import Fragment, Oversize
from dedupe.model.json_document import read_document

WRITE_KEY = re.compile(
    rb'"writeKey"[ \t\r\n\0]*+:[ \t\r\n\0]*+("(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f]){1,255}")', re.DOTALL
)
"""A field of this name; its quotes are escaped in a text that holds JSON."""


def key_in(content: bytes) -> str:
    """Return the first write key that stands anywhere in damaged JSON; "" without one."""
    match = WRITE_KEY.search(content)
    return "" if match is None else _text(match[1])


def with_own_key(item: Oversize | Fragment) -> Generator[int, None, Oversize | Fragment]:
    """Return an event with the write key at its top level; yield the bytes of each step."""
    scan = Scan(item.content, item.content.find(b"{") + 1)
    found = b""
    try:
        while scan.place < len(item.content):
            start = scan.place
            yield from scan.to_bracket()
            for match in WRITE_KEY.finditer(item.content, start, scan.place):
                found = match[1]  # of several fields of a name the last one counts
            if item.content[scan.place : scan.place + 1] in (b"}", b"]", b""):
                break
            yield from scan.past_container()
    except InvalidJSONError:  # it nests too deep
        pass
    return item._replace(write_key=_text(found)) if found else item


def _text(content: bytes) -> str:
    try:
        text = read_document(content)
    except ValueError:
        return content[1:-1].decode(errors="replace")
    return text if isinstance(text, str) else ""
