"""
Checks of a request's head (RFC 9112) beyond those of the parser.

A head that two servers in a row might read differently is refused, against request smuggling.
"""

import re
from collections.abc import Sequence

from app.http.errors import HeadTooLargeError, RequestError

PATH_BYTES_MAX = 8 * 1024
"""The limit of the part before the query; unquoting and matching 64 KiB would take 11 ms."""

HEADERS_MAX = 256
"""The limit of header fields. SDKs send about ten."""

CONTENT_LENGTH_DIGITS_MAX = 20
"""The digits of the parser's largest number."""

LINE_BYTES = len(b": \r\n")

_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""


def check_head(method: bytes, version: str, url: bytes, headers: Headers) -> None:
    """
    Check a complete head.

    RFC 9112 demands 501 for transfer codings other than `chunked`, but SDKs stop retrying only after 400.

    Raises:
        HeadTooLargeError: its path is too long.
        RequestError: it must not be served.
    """
    if len(url) > PATH_BYTES_MAX and b"?" not in url[: PATH_BYTES_MAX + 1]:
        raise HeadTooLargeError(detail=f"the path has more than {PATH_BYTES_MAX:,} bytes")
    if method == b"CONNECT" or version not in ("1.0", "1.1"):
        raise RequestError("an origin server does not serve this request")
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise RequestError("HTTP/1.1 demands one Host")
    if hosts and not _HOST.fullmatch(headers[names.index(b"host")][1]):
        raise RequestError("Host is not a host name")
    if b"content-length" in names:
        digits = headers[names.index(b"content-length")][1]
        if len(digits) > CONTENT_LENGTH_DIGITS_MAX:
            raise RequestError("implausible Content-Length")
    if b"transfer-encoding" in names:
        codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
        if version == "1.0" or codings != [b"chunked"]:
            raise RequestError("a transfer coding other than chunked")


def size_of(url: bytes, headers: Headers) -> int:
    """Return the size of a head, or of its part that has arrived."""
    return len(url) + sum([len(name) + len(value) + LINE_BYTES for name, value in headers])


def without_offer(method: bytes, version: str, url: bytes, headers: Headers) -> bytes:
    """Return a head without its Upgrade header."""
    lines = [b"%b: %b\r\n" % field for field in headers if field[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), b"".join(lines))
