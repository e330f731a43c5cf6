"""
CORS headers of every answer, errors included, so that a browser's SDK can read each of them.

A write key is no cookie: nothing that a browser adds by itself gives any right here, so any origin
may post, with credentials or without. A preflight allows whatever headers it asks for; an SDK that
adds one to its retries only would otherwise lose exactly those.
"""

import re
from collections.abc import Mapping

METHODS = b"GET, HEAD, POST, OPTIONS"
EXPOSED_HEADERS = (
    b"Retry-After, Gateway-Accepted, Gateway-Duplicates, Gateway-Request-Id, Idempotent-Replayed, "
    b"Preference-Applied, Gateway-Session-Watermark, Gateway-Session-Missing"
)
DEFAULT_HEADERS = (
    b"Authorization, Content-Type, Content-Encoding, Idempotency-Key, Prefer, X-Write-Key, Gateway-Client, "
    b"Gateway-Session, Gateway-Session-Epoch, Gateway-Acknowledged-Through"
)
MAX_AGE_S = b"86400"  # browsers cap it, Chromium at 2 h

_EXPOSED = (b"access-control-expose-headers", EXPOSED_HEADERS)

HEADERS_WITHOUT_ORIGIN = [(b"access-control-allow-origin", b"*"), _EXPOSED]
"""Of an answer to a request that names no origin."""

_HARMLESS = re.compile(rb"[\x21-\x7e ]{1,2000}")
"""What may be echoed: the server refuses to send control characters, and would answer 500."""


def origin_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers of an answer to a request from an origin."""
    if not _HARMLESS.fullmatch(origin):
        return HEADERS_WITHOUT_ORIGIN
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-credentials", b"true"),
        (b"vary", b"Origin"),
        _EXPOSED,
    ]


def preflight_headers(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers of the answer to a preflight with these headers."""
    asked = headers.get(b"access-control-request-headers", b"")
    return [
        *origin_headers(headers.get(b"origin", b"")),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", asked if _HARMLESS.fullmatch(asked) else DEFAULT_HEADERS),
        (b"access-control-max-age", MAX_AGE_S),
        (b"content-length", b"0"),
    ]
