"""
The paths that take events. Each request is decided whole: one answer, after every event's commit.

**routes.post_events** -> Router.submit -> Lane.submit -> admit -> PartitionLog.append
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from fastapi import Request, Response

from app.access import INGEST, REPLAY, Source, WriteKeys, find_write_key, key_in_head
from app.http import (
    LEASE,
    BodyLimits,
    FingerprintsInvalidError,
    IdempotencyKeyInvalidError,
    InFlight,
    Lease,
    Turn,
    Turns,
    crowd_of,
    read_body,
)
from app.ingest.advice import advice_on
from app.ingest.client_sessions import STORED, ClientSession, client_session_of, stored_sessions
from app.ingest.event_limits import STEP_BYTES
from app.ingest.identify import Arrival, Identified, Identifier
from app.ingest.large_json import SMALL_BYTES, JSONLimits
from app.ingest.payload import Payload, parse_batch, parse_event, parse_events
from app.ingest.prefer import NO_PREFERENCES, Preferences, preferences_in
from app.ingest.receipts import answer, session_headers
from app.ingest.routes.path_table import Handler
from app.ingest.routes.paths import Kind, Path
from app.ingest.watching import Watcher
from dedupe.admission import Admission
from dedupe.clock import Clock, Deadline
from dedupe.document import TYPE_CHARS_MAX
from dedupe.errors import RetriableError
from dedupe.identity import FINGERPRINT_BYTES
from dedupe.lane import Outcomes
from dedupe.router import Router
from dedupe.types import Fingerprint

IDEMPOTENCY_KEY_BYTES_MAX = 255

FINGERPRINTS = b"gateway-fingerprints"
"""Trusted: junk under the id and fingerprint of an event to come would make that one a duplicate."""

Parse: TypeAlias = Callable[[bytes, JSONLimits, Turn], Coroutine[Any, Any, Payload]]


@dataclass(frozen=True, slots=True)
class Ingest:
    """What the paths need; app.build makes it."""

    router: Router
    identifier: Identifier
    write_keys: WriteKeys
    clock: Clock
    body_limits: BodyLimits
    request_events_max: int
    answer_timeout_s: float
    keyless_bytes_max: int = 1024 * 1024  # SDKs that put the write key into the body send 500 KB at most
    sets_context_ip: bool = False
    gives_advice: bool = False
    watcher: Watcher | None = None
    in_flight: InFlight = field(default_factory=lambda: InFlight(Turns()))

    def body_limits_for(self, source: Source | None) -> BodyLimits:
        """Return the bounds of a body, tighter ones before it is known who sends it."""
        if source is not None:
            return self.body_limits
        bytes_max = min(self.keyless_bytes_max, self.body_limits.bytes_max)
        return replace(self.body_limits, bytes_max=bytes_max)

    def json_limits_for(self, source: Source | None, lease: Lease) -> JSONLimits:
        """Return the bounds of its JSON, likewise; what it takes is held in the body's lease."""
        return JSONLimits(
            self.request_events_max,
            self.identifier.limits.event_bytes_max,
            may_cut=source is not None,
            hold=lease.hold_parsed,
        )


def ingest_handlers(ingest: Ingest) -> dict[Kind, Handler]:
    """Return what handles the paths that take events in a body."""

    async def post_native(request: Request, path: Path) -> Response:
        return await post_events(ingest, request, parse_events, event_type=path.event_type, is_native=True)

    async def post_batch(request: Request, path: Path) -> Response:
        return await post_events(ingest, request, parse_batch, event_type=path.event_type)

    async def post_single(request: Request, path: Path) -> Response:
        return await post_events(ingest, request, parse_event, event_type=event_type_of(request, path))

    return {Kind.EVENTS: post_native, Kind.BATCH: post_batch, Kind.SINGLE: post_single}


def event_type_of(request: Request, path: Path) -> str:
    """Return the type that the path gives to an event without one; one that is too long is cut."""
    event_type: str = request.path_params.get("type", path.event_type)
    return event_type[:TYPE_CHARS_MAX]


async def post_events(
    ingest: Ingest, request: Request, parse: Parse, *, event_type: str, is_native: bool = False
) -> Response:
    """
    Take one request's events and answer once each of them has a verdict.

    Args:
        ingest: what this path needs.
        request: its body still unread.
        parse: finds the items in the body, by the rules of the path.
        event_type: of an event that has no type.
        is_native: whether client sessions are looked for, and the body lists where each event is, if the
            client has no preference.

    Raises:
        RequestError: the request is wrong; nothing was taken.
        RetriableError: nothing was taken, or the outcome is unknown; see Router.submit.
    """
    headers = dict(request.scope["headers"])
    source = _source_in_head(ingest.write_keys, headers, request.scope["query_string"])
    request.scope["gateway.source"] = source and source.id
    lease: Lease = request.scope[LEASE]
    sender = source.id if source else network_of(request)
    turn = partial(ingest.in_flight.turns.take, sender)
    body = await read_body(request.receive, headers, ingest.body_limits_for(source), lease, turn)
    deadline = Deadline(ingest.clock, ingest.answer_timeout_s)
    async with ingest.in_flight.room(sender, len(body), deadline):
        payload = await parse(body, ingest.json_limits_for(source, lease), turn)
        payload.check_count(ingest.request_events_max)
        source = source or _source_in_body(ingest.write_keys, request, headers, payload)
        asked = _asked(
            ingest, request, headers, payload, len(body), source, default_type=event_type, is_native=is_native
        )
        found = await _identified(ingest.identifier, payload, asked.arrival, len(body), turn)
        advice = advice_on(payload.items, asked.arrival) if ingest.gives_advice else []
        stored_bytes = found.size_bytes
        if source.allowance is not None:
            source.allowance.owe(stored_bytes - len(body))
        del body, payload  # the events are all that is needed of them, and of the memory
        lease.hold(stored_bytes)
        if ingest.watcher is not None and ingest.watcher.is_on:
            request.scope["gateway.watched"] = found.events, found.quarantined
        outcomes = await ingest.router.submit(
            found.events, found.quarantined, received_ms=asked.arrival.received_ms, deadline=deadline
        )
    _note(ingest.watcher, source, found, outcomes, request)
    response = answer(found, outcomes, preferences=asked.preferences, wants_receipts=is_native, advice=advice)
    if asked.session is not None:
        response.headers.update(await _session_headers(ingest.router, asked.session))
    return response


class _Asked(NamedTuple):
    """What a request asks for, beside its events."""

    arrival: Arrival
    preferences: Preferences
    session: ClientSession | None


def _asked(
    ingest: Ingest,
    request: Request,
    headers: dict[bytes, bytes],
    payload: Payload,
    body_bytes: int,
    source: Source,
    *,
    default_type: str,
    is_native: bool,
) -> _Asked:
    """Return what is asked for, if the source may ask for it. Raises RequestError."""
    if source.allowance is not None:
        source.allowance.take(events=len(payload.items), size_bytes=body_bytes)
    source.check(REPLAY if FINGERPRINTS in headers or STORED in headers else INGEST)
    session = (
        client_session_of(headers, payload, ingest.identifier.identity, source.id) if is_native else None
    )
    request.scope["gateway.client"] = session and session.client
    preferences = _preferences(request, headers, in_session=session is not None)
    client = request.scope["client"]
    arrival = Arrival(
        source.id,
        ingest.clock.now_ms(),
        default_type=default_type,
        idempotency_key=idempotency_key(headers),
        fingerprints=_fingerprints(headers, len(payload.items)),
        client_ip=client[0] if client and ingest.sets_context_ip else None,
        session=session,
        is_strict=preferences.is_strict,
        stored_sessions=stored_sessions(headers, len(payload.items)),
    )
    return _Asked(arrival, preferences, session)


async def _identified(
    identifier: Identifier, payload: Payload, arrival: Arrival, body_bytes: int, turn: Turn
) -> Identified:
    """Identify the items, while others have their turns. Raises RequestTooLargeError."""
    if body_bytes > SMALL_BYTES:
        await turn(body_bytes)
    identified, items = Identified(), identifier.identify(payload, arrival)
    while identified.take(items, STEP_BYTES):
        await turn(STEP_BYTES)
    return identified


def _note(
    watcher: Watcher | None, source: Source, found: Identified, outcomes: Outcomes, request: Request
) -> None:
    """Count what is stored anew, and tell whoever watches."""
    new = outcomes.admissions.count(Admission.NEW)
    if source.allowance is not None:
        source.allowance.grow(new)
    if watcher is not None and (watcher.is_on or found.rejections or new < len(outcomes.admissions)):
        watcher.decided(found.events, outcomes, found.quarantined, request.scope)


async def _session_headers(router: Router, session: ClientSession) -> dict[str, str]:
    """Return what is told of the session as it is now; nothing where nobody can say it at once."""
    try:
        state = await router.session(session.client_hash, session.session_hash)
    except RetriableError:
        return {}
    return session_headers(state)


def _source_in_head(write_keys: WriteKeys, headers: dict[bytes, bytes], query: bytes) -> Source | None:
    """
    Return who sends if the head says so; what will be refused is refused before its body is read.

    Raises:
        InvalidWriteKeyError, DisabledWriteKeyError: it is nobody.
        QuotaExceededError: the key has no quota left for it.
    """
    write_key = key_in_head(headers, query)
    if not write_key:
        return None
    source = write_keys.source_of(write_key)
    if source.allowance is not None:
        declared = headers.get(b"content-length", b"")
        size_bytes = int(declared) if declared.isdigit() and b"content-encoding" not in headers else 0
        source.allowance.check(events=1, size_bytes=size_bytes)
    return source


def network_of(request: Request) -> str:
    """Return who sends as far as anybody knows before the body is read."""
    client = request.scope["client"]
    return f"address {client and crowd_of(client[0])}"


def _source_in_body(
    write_keys: WriteKeys, request: Request, headers: dict[bytes, bytes], payload: Payload
) -> Source:
    first = payload.items[0] if payload.items else None
    key = find_write_key(headers, request.scope["query_string"], payload.top, first)
    source = write_keys.source_of(key)
    request.scope["gateway.source"] = source.id
    return source


def idempotency_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the header's bytes, or None without it. Raises IdempotencyKeyInvalidError."""
    key = headers.get(b"idempotency-key")
    if key is not None and not 0 < len(key) <= IDEMPOTENCY_KEY_BYTES_MAX:
        raise IdempotencyKeyInvalidError(told=f"it has {len(key)}")
    return key


def _fingerprints(headers: dict[bytes, bytes], count: int) -> list[Fingerprint]:
    """Return the fingerprints that stored records had when they came first; empty without the header."""
    header = headers.get(FINGERPRINTS)
    if header is None:
        return []
    try:
        fingerprints = [bytes.fromhex(part.decode("ascii")) for part in header.split(b",")]
    except ValueError:
        fingerprints = []
    if len(fingerprints) != count or any(len(found) != FINGERPRINT_BYTES for found in fingerprints):
        raise FingerprintsInvalidError(told=f"the request has {count} events")
    return fingerprints


def _preferences(request: Request, headers: Mapping[bytes, bytes], *, in_session: bool) -> Preferences:
    """Return what is heeded of all Prefer headers: how strict to be matters to client sessions alone."""
    if b"prefer" not in headers:
        return NO_PREFERENCES
    given = b",".join(value for name, value in request.scope["headers"] if name == b"prefer")
    preferences = preferences_in(given)
    return preferences if in_session else preferences._replace(is_strict=False)
