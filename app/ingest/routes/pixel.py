"""
Pixels: one event in the query of a GET, for mails and pages that can only show an image.

The answer is always the image, since an error would show a broken one; a pixel whose event was not accepted
is counted by its error code.
"""

import base64
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from app.http.errors import BatchMissingError, InvalidJSONError
from app.http.fair_scheduler import YieldToOthers
from app.http.problems import Problems
from app.http.request_metrics import RequestMetrics
from app.ingest.large_json import JSONLimits
from app.ingest.parse import parse_event
from app.ingest.payload import Payload
from app.ingest.routes.events import Ingest, event_type_of, post_events
from app.ingest.routes.paths import Path
from dedupe.model.errors import GatewayError

GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")

FIELDS_MAX = 1000
"""The limit of names in a query, which has at most 64 KiB."""

LEVELS_MAX = 250
"""The limit of dots of a name that nest: deeper than an event may be, but not deeper than orjson writes."""


async def get_pixel(
    ingest: Ingest, metrics: RequestMetrics, problems: Problems, request: Request, path: Path
) -> Response:
    """Submit the event in the query, and always answer with the image."""
    query: bytes = request.scope["query_string"]
    headers = {}
    try:
        answer = await post_events(
            ingest,
            request,
            partial(_parse_query, query),
            event_type=event_type_of(request, path),
        )
        headers = {name: value for name, value in answer.headers.items() if name.startswith("gateway-")}
    except GatewayError as err:
        metrics.discard(path.template, err.code)
        problems.note(err, request.scope)
        await ingest.penalties.hold_back(err, request.scope)
    return Response(GIF, 200, {"Cache-Control": "no-store", **headers}, media_type="image/gif")


async def _parse_query(
    query: bytes, _body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers
) -> Payload:
    return await parse_pixel(query, limits, yield_to_others)


async def parse_pixel(query: bytes, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """
    Return the event in a query: `data` as base64 of its JSON, or its fields as names with dots.

    Raises:
        InvalidJSONError: `data` is not base64 of JSON.
        BatchMissingError: the query has no event.
    """
    await yield_to_others(len(query))
    try:
        fields = parse_qsl(query.decode("ascii", "replace"), max_num_fields=FIELDS_MAX)
    except ValueError as err:
        raise BatchMissingError from err
    data = next((value for name, value in fields if name == "data"), None)
    if data is not None:
        return await parse_event(_decoded(data), limits, yield_to_others)
    event = _nested(fields)
    if not event.keys() - {"writeKey"}:
        raise BatchMissingError
    return Payload([event], event, {})


def _decoded(data: str) -> bytes:
    """Decode both alphabets of base64, padded or not; a query has a blank instead of a plus sign."""
    standard = data.replace(" ", "+").replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except ValueError as err:
        raise InvalidJSONError(detail="data is no base64") from err


def _nested(fields: list[tuple[str, str]]) -> dict[str, Any]:
    """Return `a.b=c` as {"a": {"b": "c"}}; a name that contradicts another one keeps its dots."""
    event: dict[str, Any] = {}
    for name, value in fields:
        *parents, leaf = name.split(".", LEVELS_MAX)
        node = event
        for parent in parents:
            child = node.setdefault(parent, {})
            if type(child) is not dict:
                node, leaf = event, name
                break
            node = child
        node.setdefault(leaf, value)
    return event
