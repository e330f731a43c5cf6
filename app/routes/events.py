"""
The paths that take events. Each request is decided whole: one answer, after every event's commit.

**routes.post_events** -> Router.submit -> Lane.submit -> admit -> PartitionLog.append
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fastapi import FastAPI, Request, Response

from app.auth import WriteKeys, find_write_key, key_in_head
from app.body import BodyLimits, read_body
from app.body_memory import LEASE, Lease
from app.errors import IdempotencyKeyInvalidError
from app.identify import Arrival, Identifier
from app.payload import Payload, parse_batch, parse_events
from app.receipts import answer
from dedupe.admission import Admission
from dedupe.clock import Clock, Deadline
from dedupe.router import Router

IDEMPOTENCY_KEY_BYTES_MAX = 255

Parse: TypeAlias = Callable[[bytes], Payload]


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
    sets_context_ip: bool = False


def add_event_routes(app: FastAPI, ingest: Ingest) -> None:
    """Add the paths of SDKs and the native one."""
    _add(app, "/v1/batch", ingest, parse_batch, wants_receipts=False)
    _add(app, "/v1/events", ingest, parse_events, wants_receipts=True)


def _add(app: FastAPI, path: str, ingest: Ingest, parse: Parse, *, wants_receipts: bool) -> None:
    """Add a plain route: FastAPI's own would find no parameters to solve, for 30 us a request."""

    async def post(request: Request) -> Response:
        request.scope["gateway.route"] = path
        return await post_events(ingest, request, parse, wants_receipts=wants_receipts)

    app.add_route(path, post, methods=["POST"], include_in_schema=False)


async def post_events(ingest: Ingest, request: Request, parse: Parse, *, wants_receipts: bool) -> Response:
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
    headers, query = dict(request.scope["headers"]), request.scope["query_string"]
    if ingest.write_keys.has_quotas:
        _refuse_unread(ingest.write_keys, headers, query)
    lease: Lease = request.scope[LEASE]
    body = await read_body(request.receive, headers, ingest.body_limits, lease)
    payload = parse(body)
    payload.check_count(ingest.request_events_max)
    first = payload.items[0] if payload.items else None
    source = ingest.write_keys.source_of(find_write_key(headers, query, payload.top, first))
    allowance = source.allowance
    if allowance is not None:
        allowance.take(events=len(payload.items), size_bytes=len(body))
    deadline = Deadline(ingest.clock, ingest.answer_timeout_s)
    received_ms = ingest.clock.now_ms()
    client_ip = request.scope["client"][0] if ingest.sets_context_ip and request.scope["client"] else None
    arrival = Arrival(source.id, received_ms, idempotency_key=_idempotency_key(headers), client_ip=client_ip)
    found = ingest.identifier.identify(payload, arrival)
    del body, payload, first  # the events are all that is needed of them, and of the memory
    lease.hold(found.size_bytes)
    outcomes = await ingest.router.submit(
        found.events, found.quarantined, received_ms=received_ms, deadline=deadline
    )
    if allowance is not None:
        allowance.grow(sum(outcome.admission is Admission.NEW for outcome in outcomes))
    return answer(found, outcomes, wants_receipts=wants_receipts or _prefers_receipts(headers))


def _refuse_unread(write_keys: WriteKeys, headers: dict[bytes, bytes], query: bytes) -> None:
    """Refuse before its body is read what a key in the head has no quota for, so that it costs little."""
    write_key = key_in_head(headers, query)
    allowance = write_keys.allowance_of(write_key) if write_key else None
    if allowance is not None:
        declared = headers.get(b"content-length", b"")
        size_bytes = int(declared) if declared.isdigit() and b"content-encoding" not in headers else 0
        allowance.check(events=1, size_bytes=size_bytes)


def _idempotency_key(headers: dict[bytes, bytes]) -> bytes | None:
    key = headers.get(b"idempotency-key")
    if key is not None and not 0 < len(key) <= IDEMPOTENCY_KEY_BYTES_MAX:
        raise IdempotencyKeyInvalidError
    return key


def _prefers_receipts(headers: dict[bytes, bytes]) -> bool:
    """Whether `Prefer: return=representation` (RFC 7240) is among the preferences."""
    preferences = headers.get(b"prefer", b"").lower().replace(b'"', b"").replace(b" ", b"")
    return b"return=representation" in preferences.replace(b";", b",").split(b",")
