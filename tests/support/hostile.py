"""
The corpus of hostile bodies, tests/fixtures/hostile.jsonl: what a client may send, and what it is.

One JSON object a line:

    name      says what is wrong, or only odd
    body      the document, in parts: text, {"base64": bytes}, or {"repeat": text, "times": n}
    encode    (may be absent) what is done to it, in order: "gzip", "gzip-stored", "zlib", "deflate",
              {"then": text} one more gzip member, {"members": n} n copies of it, {"cut": n} bytes off
              the end, {"keep": n} bytes of the start, {"append": base64}
    headers   (may be absent) of the request
    status    of the gateway's answer
    code      of the error, if it is one
    ids       the message ids of its events, in order; null where the gateway assigns one
    rejected  [index, code] of its items that are kept apart

Every reader of events must agree with it: what is no JSON document, which items are events, and
which id each has.
"""

import base64
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

CORPUS = Path(__file__).parents[1] / "fixtures" / "hostile.jsonl"


class Hostile(NamedTuple):
    """One case of the corpus."""

    name: str
    document: bytes
    """The body before it was encoded."""
    wire: bytes
    """The body as it is sent."""
    headers: dict[str, str]
    status: int
    code: str | None
    ids: list[str | None]
    rejected: list[tuple[int, str]]


def read_corpus() -> list[Hostile]:
    """Return all cases in the file's order; building the largest bodies takes a second or two."""
    return [_case(orjson.loads(line)) for line in CORPUS.read_bytes().splitlines()]


def _case(line: dict[str, Any]) -> Hostile:
    document = b"".join(map(_part, line["body"]))
    wire = document
    for step in line.get("encode", ()):
        wire = _encoded(wire, step)
    return Hostile(
        line["name"],
        document,
        wire,
        line.get("headers", {}),
        line["status"],
        line.get("code"),
        line.get("ids", []),
        [(index, code) for index, code in line.get("rejected", [])],
    )


def _part(part: str | dict[str, Any]) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if "base64" in part:
        return base64.b64decode(part["base64"])
    repeated: str = part["repeat"]
    return repeated.encode() * int(part["times"])


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "gzip-stored": lambda data: gzip.compress(data, compresslevel=0, mtime=0),
    "zlib": zlib.compress,
    "deflate": lambda data: zlib.compress(data, wbits=-zlib.MAX_WBITS),
}


def _encoded(data: bytes, step: str | dict[str, Any]) -> bytes:
    match step:
        case str(name):
            return _COMPRESS[name](data)
        case {"then": str(text)}:
            return data + _COMPRESS["gzip"](text.encode())
        case {"members": int(count)}:
            return data * count
        case {"cut": int(count)}:
            return data[:-count]
        case {"keep": int(count)}:
            return data[:count]
        case {"append": str(more)}:
            return data + base64.b64decode(more)
    raise ValueError(f"unknown step {step!r}")
