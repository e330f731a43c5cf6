"""
How a body is compressed: its first bytes decide, and what Content-Encoding says only where they are none's.

Proxies inflate a body and leave the header, clients compress one and forget it, and others name a charset
there. JSON, gzip (RFC 1952) and zlib (RFC 1950) begin differently, so each is taken for what it is. A raw
deflate stream of JSON begins like none of them, but for the rare one whose only repeats have three bytes.
Pure.
"""

import re
from enum import Enum

from app.http.errors import UnsupportedEncodingError

GZIP_MAGIC = b"\x1f\x8b"

OTHERS = frozenset(
    (
        *(b"aes128gcm", b"br", b"compress", b"dcb", b"dcz", b"exi", b"pack200-gzip", b"x-compress", b"zstd"),
        *(b"brotli", b"bzip2", b"lz4", b"lzma", b"sdch", b"snappy", b"x-bzip2", b"xz"),
    )
)
"""
Encodings that exist and are not understood, those of IANA first. Some of them, such as brotli, may begin
with any byte, so a body of theirs is not looked at.
"""

BEGIN_BYTES = 1024
"""Looked at. Of a body with more blanks before its first mark the header decides."""

_PLAIN = re.compile(rb'(?:\xef\xbb\xbf|[ \t\r\n])*+[{\["]')
_PRESET_DICTIONARY = 0x20
_ZLIB_METHOD, _ZLIB_WINDOW_MAX, _ZLIB_CHECK = 8, 7, 31


class Encoding(Enum):
    """What Content-Encoding says of a body, and what a body is."""

    PLAIN = "identity"
    GZIP = "gzip"
    DEFLATE = "deflate"  # zlib, or raw
    UNKNOWN = "unknown"  # a word that is no encoding


_KNOWN = {
    b"": Encoding.PLAIN,
    b"identity": Encoding.PLAIN,
    b"gzip": Encoding.GZIP,
    b"x-gzip": Encoding.GZIP,
    b"deflate": Encoding.DEFLATE,
}


def declared_encoding(header: bytes) -> Encoding:
    """
    Return what a Content-Encoding says; of several words the last compression. Parameters are ignored.

    Raises UnsupportedEncodingError if it names one of OTHERS.
    """
    words = [part.partition(b";")[0].strip() for part in header.lower().split(b",")]
    for word in OTHERS.intersection(words):
        raise UnsupportedEncodingError(detail=word.decode())
    found = [_KNOWN.get(word, Encoding.UNKNOWN) for word in words]
    compressed = [encoding for encoding in found if encoding in (Encoding.GZIP, Encoding.DEFLATE)]
    if compressed:
        return compressed[-1]
    return Encoding.UNKNOWN if Encoding.UNKNOWN in found else Encoding.PLAIN


def encoding_of(body: bytes, declared: Encoding) -> Encoding:
    """Return PLAIN, GZIP or DEFLATE. Raises UnsupportedEncodingError: neither body nor header tells."""
    if not body:
        return declared if declared is not Encoding.UNKNOWN else Encoding.PLAIN
    if _PLAIN.match(body, 0, BEGIN_BYTES):
        return Encoding.PLAIN
    if body.startswith(GZIP_MAGIC):
        return Encoding.GZIP
    if _is_zlib(body):
        return Encoding.DEFLATE
    if declared is Encoding.UNKNOWN:
        raise UnsupportedEncodingError
    return declared


def _is_zlib(body: bytes) -> bool:
    """Whether it begins with the head of a zlib stream; its window may be of any size."""
    if len(body) < 2 or body[0] & 0x0F != _ZLIB_METHOD or body[0] >> 4 > _ZLIB_WINDOW_MAX:
        return False
    return int.from_bytes(body[:2]) % _ZLIB_CHECK == 0 and not body[1] & _PRESET_DICTIONARY
