"""
What a request's head must be like (RFC 9112) beyond what the parser itself demands.

Whatever two servers in a row might read differently is refused: where one sees the end of a request
and the other does not, one client's bytes become another's request.
"""

import re
from collections.abc import Sequence

from app.errors import HeadTooLargeError, RequestError

HEADERS_MAX = 256
"""Header fields of one request. SDKs send about ten; each takes some hundred bytes once parsed."""

CONTENT_LENGTH_DIGITS_MAX = 20
"""Of any number that the parser takes; leading zeros beyond it are nobody's."""

LINE_BYTES = len(b": \r\n")

_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""


def check_head(method: bytes, version: str, url: bytes, headers: Headers, *, bytes_max: int) -> None:
    """
    Judge a complete head.

    Transfer codings other than `chunked` would be 501, but SDKs give up on 400 alone.

    Raises:
        HeadTooLargeError: it has more bytes than allowed.
        RequestError: it must not be served. Both final.
    """
    if size_of(url, headers) > bytes_max:
        raise HeadTooLargeError
    hosts: list[bytes] = []
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"content-length" and len(value) > CONTENT_LENGTH_DIGITS_MAX:
            raise RequestError("implausible Content-Length")
    if method == b"CONNECT" or version not in ("1.0", "1.1"):
        raise RequestError("no request that an origin server serves")
    if (len(hosts) != 1 and (hosts or version == "1.1")) or not all(map(_HOST.fullmatch, hosts)):
        raise RequestError("HTTP/1.1 demands one Host")
    if codings and (version == "1.0" or [coding.lower() for coding in codings] != [b"chunked"]):
        raise RequestError("a transfer coding other than chunked")


def size_of(url: bytes, headers: Headers) -> int:
    """Return the bytes of a head, or of what is known of it."""
    return len(url) + sum([len(name) + len(value) + LINE_BYTES for name, value in headers])


def without_offer(method: bytes, version: str, url: bytes, headers: Headers) -> bytes:
    """Return a head without its offer to speak another protocol."""
    lines = [b"%b: %b\r\n" % field for field in headers if field[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), b"".join(lines))
