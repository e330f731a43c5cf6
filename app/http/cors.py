"""
CORS headers of every answer, errors included.

Any origin may post, with or without credentials, since a browser does not add write keys by itself, as it
does cookies. A preflight allows all requested headers, since SDKs may add headers to retries.
"""

import re
from collections.abc import Mapping

METHODS = b"GET, HEAD, POST, OPTIONS"
EXPOSED_HEADERS = (
    b"Retry-After, Gateway-Accepted, Gateway-Duplicates, Gateway-Rejected, Gateway-Request-Id, "
    b"Gateway-Source, Idempotent-Replayed, Preference-Applied, Gateway-Session-Watermark, "
    b"Gateway-Session-Missing"
)
DEFAULT_HEADERS = (
    b"Authorization, Content-Type, Content-Encoding, Idempotency-Key, Prefer, X-Write-Key, Gateway-Client, "
    b"Gateway-Session, Gateway-Session-Epoch, Gateway-Session-Ended, Gateway-Acknowledged-Through"
)
MAX_AGE_S = b"86400"  # browsers cap it, Chromium at 2 h

_EXPOSED = (b"access-control-expose-headers", EXPOSED_HEADERS)

HEADERS_WITHOUT_ORIGIN = [(b"access-control-allow-origin", b"*"), _EXPOSED]
"""The headers of an answer to a request without an origin."""

_HARMLESS = re.compile(rb"[\x21-\x7e ]{1,2000}")
"""The values that may be echoed: the server would refuse to send control characters."""


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
    return [
        *origin_headers(headers.get(b"origin", b"")),
        *permissions(headers),
        (b"content-length", b"0"),
    ]


def permissions(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return what only the answer to a preflight says."""
    requested = headers.get(b"access-control-request-headers", b"")
    return [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", requested if _HARMLESS.fullmatch(requested) else DEFAULT_HEADERS),
        (b"access-control-max-age", MAX_AGE_S),
    ]
