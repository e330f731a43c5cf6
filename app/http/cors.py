"""
CORS on every answer, errors included, so that a browser's SDK can read each of them.

A write key is no cookie: nothing that a browser adds by itself gives any right here, so any origin
may post, with credentials or without. A preflight allows whatever headers it asks for; an SDK that
adds one to its retries only would otherwise lose exactly those.
"""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

_HARMLESS = re.compile(rb"[\x21-\x7e ]{1,2000}")
"""What may be echoed: the server refuses to send control characters, and would answer 500."""


class CORS:
    """Answers preflights and adds the CORS headers to everything else."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        added = origin_headers(headers.get(b"origin", b""))
        if scope["method"] == "OPTIONS":
            await _answer_preflight(headers, added, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def origin_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers of an answer to a request from there, b"" if it does not say."""
    exposed = (b"access-control-expose-headers", EXPOSED_HEADERS)
    if not _HARMLESS.fullmatch(origin):
        return [(b"access-control-allow-origin", b"*"), exposed]
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-credentials", b"true"),
        (b"vary", b"Origin"),
        exposed,
    ]


async def _answer_preflight(
    headers: dict[bytes, bytes], added: list[tuple[bytes, bytes]], send: Send
) -> None:
    asked = headers.get(b"access-control-request-headers", b"")
    answer = [
        *added,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", asked if _HARMLESS.fullmatch(asked) else DEFAULT_HEADERS),
        (b"access-control-max-age", MAX_AGE_S),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": answer})
    await send({"type": "http.response.body", "body": b""})
