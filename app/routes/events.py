"""
The paths that take events. Each request is decided whole: one answer, after every event's commit.

**routes.post_events** -> Router.submit -> Lane.submit -> admit -> PartitionLog.append
"""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from app.auth import WriteKeys, find_write_key
from app.body import BodyLimits, read_body
from app.errors import IdempotencyKeyInvalidError
from app.identify import Arrival, Identifier
from app.payload import Payload, parse_batch, parse_events
from app.receipts import answer
from dedupe.clock import Clock, Deadline
from dedupe.router import Router

IDEMPOTENCY_KEY_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class Ingest:
    """What the paths need, chosen by app.main."""

    router: Router
    identifier: Identifier
    write_keys: WriteKeys
    clock: Clock
    body_limits: BodyLimits
    request_events_max: int
    answer_timeout_s: float


def event_routes(ingest: Ingest) -> APIRouter:
    """Return the paths of SDKs and the native one."""
    routes = APIRouter()

    @routes.post("/v1/batch")
    async def post_batch(request: Request) -> Response:
        return await post_events(ingest, request, parse_batch)

    @routes.post("/v1/events")
    async def post_native(request: Request) -> Response:
        return await post_events(ingest, request, parse_events, wants_receipts=True)

    return routes


async def post_events(
    ingest: Ingest, request: Request, parse: Callable[[bytes], Payload], *, wants_receipts: bool = False
) -> Response:
    """
    Take one request's events and answer once each of them has a verdict.

    Args:
        ingest: what this path needs.
        request: its body still unread.
        parse: finds the items in the body, by the rules of the path.
        wants_receipts: whether the body always lists where each event is.

    Raises:
        RequestError: the request is wrong; nothing was taken.
        RetriableError: nothing was taken, or the outcome is unknown; see Router.submit.
    """
    headers = dict(request.scope["headers"])
    body = await read_body(request.receive, headers, ingest.body_limits)
    payload = parse(body)
    payload.check_count(ingest.request_events_max)
    first = payload.items[0] if payload.items else None
    write_key = find_write_key(headers, request.scope["query_string"], payload.top, first)
    source = ingest.write_keys.source_of(write_key)
    deadline = Deadline(ingest.clock, ingest.answer_timeout_s)
    received_ms = ingest.clock.now_ms()
    arrival = Arrival(source.id, received_ms, idempotency_key=_idempotency_key(headers))
    found = ingest.identifier.identify(payload, arrival)
    outcomes = await ingest.router.submit(
        found.events, found.quarantined, received_ms=received_ms, deadline=deadline
    )
    return answer(found, outcomes, wants_receipts=wants_receipts or _prefers_receipts(headers))


def _idempotency_key(headers: dict[bytes, bytes]) -> bytes | None:
    key = headers.get(b"idempotency-key")
    if key is not None and not 0 < len(key) <= IDEMPOTENCY_KEY_BYTES_MAX:
        raise IdempotencyKeyInvalidError
    return key


def _prefers_receipts(headers: dict[bytes, bytes]) -> bool:
    """Whether `Prefer: return=representation` (RFC 7240) is among the preferences."""
    preferences = headers.get(b"prefer", b"").lower().replace(b'"', b"").replace(b" ", b"")
    return b"return=representation" in preferences.replace(b";", b",").split(b",")
