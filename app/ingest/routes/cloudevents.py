"""
The path of CloudEvents: their HTTP binding 1.0.2, and the handshake of their webhooks.

Answers are those of the native path, receipts included; a CloudEvent that is stored already is a success.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import Response

from app.auth.write_keys import key_in_head, log_in
from app.http.cors import permissions
from app.http.fair_scheduler import YieldToOthers
from app.http.request_context import CONTEXT, RequestContext
from app.http.request_middleware import WEBHOOK_ORIGIN
from app.ingest.cloudevents import Attributes, attributes_in, is_binary, parse_damaged, parser_of
from app.ingest.identified import Dialect
from app.ingest.large_json import JSONLimits
from app.ingest.parse import Parse
from app.ingest.payload import Payload
from app.ingest.routes.events import Ingest, post_events
from app.ingest.routes.path_table import Handler
from app.ingest.routes.paths import Path
from dedupe.model.cloudevent import may_be_json

UNLIMITED = "*"
SECONDS = 60  # of the rates of webhooks

_TOKEN = re.compile(rb"(?:^|&)access_token=([^&]+)")
_HARMLESS = re.compile(rb"[!-~]{1,2000}")


def cloudevents_handler(ingest: Ingest) -> Handler:
    """Return the handler of CloudEvents."""
    as_declared = replace(ingest, body_limits=replace(ingest.body_limits, is_as_declared=True))
    source_hash = ingest.identifier.identity.source_hash

    async def handle(request: Request, path: Path) -> Response:
        context: RequestContext = request.scope[CONTEXT]
        context.source_hash = source_hash
        context.headers = with_bearer(context.headers, request.scope["query_string"])
        if request.method == "OPTIONS":
            return handshake(ingest, request)
        content_type = context.headers.get(b"content-type", b"").decode("latin-1")
        attributes = attributes_in(context.headers)
        parse = parser_of(content_type, attributes)
        takes_any = False
        if is_binary(content_type, attributes):
            takes_any = not may_be_json(content_type)  # data may be a compressed file
            parse = _undamaged(parse, context, content_type, attributes)
        door = as_declared if takes_any else ingest
        return await post_events(
            door, request, parse, event_type=path.event_type, dialect=Dialect.CLOUDEVENTS
        )

    return handle


def handshake(ingest: Ingest, request: Request) -> Response:
    """
    Consent to deliveries from the origin that asks.

    Webhooks may ask with the write key, which then has to be good: its quota is the rate.

    Raises:
        InvalidWriteKeyError, DisabledWriteKeyError: the key has no enabled source.
    """
    context: RequestContext = request.scope[CONTEXT]
    rate = UNLIMITED
    if write_key := key_in_head(context.headers, request.scope["query_string"]):
        allowance = log_in(ingest.write_keys, write_key, request.scope).allowance
        if allowance is not None and allowance.quota.requests is not None:
            rate = str(max(1, int(allowance.quota.requests * SECONDS)))
    origin = context.headers[WEBHOOK_ORIGIN]
    headers = {
        "Allow": "POST, OPTIONS",
        "WebHook-Allowed-Origin": origin.decode() if _HARMLESS.fullmatch(origin) else "*",
        "WebHook-Allowed-Rate": rate,
    }
    response = Response(status_code=200, headers=headers)
    if b"access-control-request-method" in context.headers:
        response.raw_headers += permissions(context.headers)
    return response


def with_bearer(headers: Mapping[bytes, bytes], query: bytes) -> Mapping[bytes, bytes]:
    """Return the headers with the token of a webhook as X-Write-Key, if no other place has a write key."""
    if key_in_head(headers, query):
        return headers
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        match = _TOKEN.search(query)
        token = unquote_plus(match[1].decode("ascii", "replace")).encode() if match else b""
    return {**headers, b"x-write-key": token.strip()} if token else headers


def _undamaged(parse: Parse, context: RequestContext, content_type: str, attributes: Attributes) -> Parse:
    """Return a parser that does not take a part of damaged data for the whole."""

    async def parse_undamaged(body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
        if context.damage is None:
            return await parse(body, limits, yield_to_others)
        return await parse_damaged(
            body, limits, yield_to_others, content_type=content_type, attributes=attributes
        )

    return parse_undamaged
