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

_ANYWHERE = re.compile(
    rb'"writeKey\\{0,15}"[ \t\r\n\0]*+:[ \t\r\n\0]*+\\{0,15}"((?:[^"\\\x00-\x1f]|\\u[0-9a-fA-F]{4}){1,255})'
)
"""The same in texts within texts, too."""

WINDOW_BYTES = 32 * 1024
"""Searched in one step; its half is longer than any field that matches."""

CONTAINERS_MAX = 20_000


def key_in(content: bytes) -> str:
    """Return the first write key that stands anywhere in damaged or wrapped JSON; "" without one."""
    match = _ANYWHERE.search(content)
    return "" if match is None else _text(b'"%b"' % match[1])


def with_own_key(item: Oversize | Fragment) -> Generator[int, None, Oversize | Fragment]:
    """
    Return an event with the write key at its top level; yield the bytes of each step.

    The key is found among the first CONTAINERS_MAX containers.
    """
    content = item.content
    scan = Scan(content, content.find(b"{") + 1)
    try:
        for _ in range(CONTAINERS_MAX):
            place = scan.place
            yield from scan.to_bracket()
            while place < scan.place:
                match = WRITE_KEY.search(content, place, min(scan.place, place + WINDOW_BYTES))
                if match is not None:
                    return item._replace(write_key=_text(match[1]))
                place += WINDOW_BYTES // 2
                if place < scan.place:
                    yield WINDOW_BYTES // 2
            if content[scan.place : scan.place + 1] in (b"}", b"]", b""):
                break
            yield from scan.past_container()
    except InvalidJSONError:  # it nests too deep
        pass
    return item


def _text(content: bytes) -> str:
    try:
        text = read_document(content)
    except ValueError:
        return content[1:-1].decode(errors="replace")
    return text if isinstance(text, str) else ""
