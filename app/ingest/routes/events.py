"""
The paths for events. A request has one answer, after the commit of all its events.

**routes.post_events** -> Router.submit -> Lane.submit -> admit -> PartitionLog.append
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from app.auth.write_keys import INGEST, REPLAY, Source, WriteKeys, key_in_head, log_in, own_key
from app.http.body import BodyLimits, read_body
from app.http.body_memory import MemoryReservation
from app.http.client_address import address_group
from app.http.errors import (
    RequestError,
    SessionFieldsInvalidError,
    WriteKeyMissingError,
)
from app.http.fair_scheduler import FairScheduler, YieldToOthers
from app.http.penalties import Penalties
from app.http.request_context import CONTEXT, RequestContext
from app.http.source_use import SourceUse
from app.ingest.advice import advice_on
from app.ingest.client_sessions import (
    SESSION_HEADERS,
    STORED,
    ClientSession,
    client_session_of,
    stored_sessions,
)
from app.ingest.decision_observer import DecisionObserver
from app.ingest.duplicate_samples import DuplicateSamples
from app.ingest.event_keys import Shares, Sole, keys_of, shares_of
from app.ingest.event_limits import STEP_BYTES
from app.ingest.identified import Arrival, Dialect, Identified, Rejection
from app.ingest.identify import Identifier
from app.ingest.items import free
from app.ingest.large_json import SMALL_BYTES, JSONLimits
from app.ingest.observed import Observed
from app.ingest.parse import Parse, parse_batch, parse_event, parse_events
from app.ingest.payload import Payload, is_wrapped
from app.ingest.prefer import Preferences
from app.ingest.receipts import answer, session_headers
from app.ingest.routes.parsing import (
    FINGERPRINTS,
    fingerprints_of,
    idempotency_key,
    is_replay,
    parse_or_salvage,
    preferences_of,
)
from app.ingest.routes.path_table import Handler
from app.ingest.routes.paths import Kind, Path
from app.ingest.unparsed_key import key_in
from dedupe.decide.admission import NEW
from dedupe.model.clock import Clock, Deadline
from dedupe.model.errors import RetriableError
from dedupe.model.json_document import TYPE_CHARS_MAX
from dedupe.model.types import Event
from dedupe.router import Router
from dedupe.submission import Outcomes

SALVAGED_BYTES = 512
"""The least that an event or a fragment of a damaged body is charged."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """The collaborators and limits of the handlers of events; app.build creates it."""

    router: Router
    identifier: Identifier
    write_keys: WriteKeys
    clock: Clock
    body_limits: BodyLimits
    request_events_max: int
    answer_timeout_s: float
    sets_context_ip: bool = False
    gives_advice: bool = False
    observer: DecisionObserver | None = None
    observed: Observed | None = None
    samples: DuplicateSamples | None = None
    scheduler: FairScheduler = field(default_factory=FairScheduler)
    penalties: Penalties = field(default_factory=Penalties)
    use: SourceUse = field(default_factory=SourceUse)

    def json_limits_for(self, source: Source | None, request: Request) -> JSONLimits:
        """Return the limits of its JSON; the body's lease is charged for parsed documents."""
        lease: MemoryReservation = request.scope[CONTEXT].lease
        limits = JSONLimits(
            self.request_events_max, self.identifier.limits.event_bytes_max, hold=lease.hold_parsed
        )
        return limits if source else replace(limits, check_top=partial(_check_top, self.write_keys, request))


def ingest_handlers(ingest: Ingest) -> dict[Kind, Handler]:
    """Return the handlers of paths with events in the body."""

    async def post_native(request: Request, path: Path) -> Response:
        request.scope[CONTEXT].source_hash = ingest.identifier.identity.source_hash
        return await post_events(ingest, request, parse_events, event_type=path.event_type, is_native=True)

    async def post_batch(request: Request, path: Path) -> Response:
        return await post_events(ingest, request, parse_batch, event_type=path.event_type)

    async def post_single(request: Request, path: Path) -> Response:
        return await post_events(ingest, request, parse_event, event_type=event_type_of(request, path))

    return {Kind.EVENTS: post_native, Kind.BATCH: post_batch, Kind.SINGLE: post_single}


def event_type_of(request: Request, path: Path) -> str:
    """Return the path's type for events without one, at most TYPE_CHARS_MAX characters."""
    event_type: str = request.path_params.get("type", path.event_type)
    return event_type[:TYPE_CHARS_MAX]


async def post_events(
    ingest: Ingest,
    request: Request,
    parse: Parse,
    *,
    event_type: str,
    is_native: bool = False,
    dialect: Dialect = Dialect.EVENTS,
) -> Response:
    """
    Submit a request's events, and answer once each of them has a verdict.

    Args:
        ingest: the collaborators and limits.
        request: the request, with an unread body.
        parse: returns the items of the body by the rules of the path.
        event_type: the type of events without one.
        is_native: whether the request may have a client session, and the answer has receipts by default.
        dialect: by which rules the items are events; answers on CloudEvents have receipts by default, too.

    Raises:
        RequestError: the request is wrong; nothing was accepted.
        RetriableError: nothing was accepted, or the outcome is unknown; see Router.submit.
    """
    context: RequestContext = request.scope[CONTEXT]
    source = _source_in_head(ingest.write_keys, request)
    sender = source.id if source else network_of(request)
    yield_to_others = partial(ingest.scheduler.yield_to_others, sender)
    body = await _body_of(ingest, request, source, yield_to_others)
    deadline = Deadline(ingest.clock, ingest.answer_timeout_s)
    async with ingest.scheduler.slot(sender, len(body), deadline):
        payload, refusal = await parse_or_salvage(
            parse,
            body,
            ingest.json_limits_for(source, request),
            yield_to_others,
            request,
            is_native=is_native,
            native=ingest.identifier.native,
        )
        owner = _owner_of(ingest.write_keys, request, payload, source, refusal, body)
        owner.take(len(body) if refusal is None else max(len(body), SALVAGED_BYTES * len(payload.items)))
        options = _options_of(ingest, request, payload, owner, default_type=event_type, is_native=is_native)
        arrival = options.arrival._replace(dialect=dialect)
        identified = Identified()
        items = ingest.identifier.identify(payload, arrival, owner.ownership, lossy=identified.lossy)
        await _take_all(identified, items, len(body), yield_to_others)
        advice = advice_on(payload.items, arrival) if ingest.gives_advice else []
        stored_bytes, events, quarantined = identified.size_bytes, identified.events, identified.quarantined
        owner.store(identified, len(body))
        if len(body) > SMALL_BYTES:
            await free(payload.items, len(body), yield_to_others)
        del body, payload  # frees their memory
        context.lease.hold(min(stored_bytes, ingest.identifier.limits.request_bytes_max))
        if ingest.observer is not None and ingest.observer.is_on:
            context.watched = [*events, *quarantined]
        context.has_counted_events = True
        outcomes = await ingest.router.submit(
            events,
            quarantined,
            received_ms=arrival.received_ms,
            deadline=deadline,
            has_several_sources=owner.has_several_sources,
        )
    owner.grow(identified, outcomes.admissions)
    _note(ingest, identified, outcomes, context)
    if owner.failed_log_ins:
        await ingest.penalties.note_failed_log_ins(owner.failed_log_ins, request.scope)
    if refusal is not None and is_native and not events:
        raise context.damage if isinstance(context.damage, RequestError) else refusal  # the body is kept
    has_receipts = is_native or dialect is Dialect.CLOUDEVENTS
    response = answer(
        identified, outcomes, preferences=options.preferences, wants_receipts=has_receipts, advice=advice
    )
    if arrival.session is not None:
        response.headers.update(await _session_headers(ingest.router, arrival.session))
    return response


class _RequestOptions(NamedTuple):
    """The options of a request besides its events."""

    arrival: Arrival
    preferences: Preferences | None


def _options_of(
    ingest: Ingest,
    request: Request,
    payload: Payload,
    owner: Sole | Shares,
    *,
    default_type: str,
    is_native: bool,
) -> _RequestOptions:
    """Return the options of a request, if its owner has the scopes for them. Raises RequestError."""
    context: RequestContext = request.scope[CONTEXT]
    headers, count, source = context.headers, len(payload.items), owner.source
    source.check(REPLAY if is_replay(headers) else INGEST)
    session = preferences = None
    if is_native and _has_session(headers, payload.top):
        if owner.has_several_sources:
            raise SessionFieldsInvalidError(detail="its events have write keys of several sources")
        session = client_session_of(headers, payload, ingest.identifier.identity, source.id)
        context.client = session.client
    if b"prefer" in headers:
        preferences = preferences_of(request)
        if session is None:  # strictness only applies to client sessions
            preferences = preferences._replace(is_strict=False)
    client = request.scope["client"]
    arrival = Arrival(
        source.id,
        ingest.clock.now_ms(),
        default_type=default_type,
        idempotency_key=idempotency_key(headers),
        fingerprints=fingerprints_of(headers[FINGERPRINTS], count) if FINGERPRINTS in headers else [],
        client_ip=client[0] if client and ingest.sets_context_ip else None,
        session=session,
        is_strict=preferences is not None and preferences.is_strict,
        stored_sessions=stored_sessions(headers[STORED], count) if STORED in headers else (),
    )
    return _RequestOptions(arrival, preferences)


def _has_session(headers: Mapping[bytes, bytes], top: Mapping[str, Any] | None) -> bool:
    """Whether a header or a field at the body's top level names a client session."""
    in_body = top is not None and (top.get("client") is not None or top.get("session") is not None)
    return in_body or not SESSION_HEADERS.isdisjoint(headers)


async def _take_all(
    identified: Identified,
    items: Iterator[Event | list[Event] | Rejection | int],
    body_bytes: int,
    yield_to_others: YieldToOthers,
) -> None:
    """Identify the items, step by step."""
    if body_bytes > SMALL_BYTES:
        await yield_to_others(body_bytes)
    before = identified.work_bytes
    while identified.take(items, STEP_BYTES):
        await yield_to_others(max(STEP_BYTES, identified.work_bytes - before))
        before = identified.work_bytes


def _note(ingest: Ingest, identified: Identified, outcomes: Outcomes, context: RequestContext) -> None:
    """Count who sent the events; an observer that wants their verdicts gets them after the answer."""
    observer = ingest.observer
    if identified.events:
        ingest.use.note(identified.events, outcomes.admissions, context.headers)
        if ingest.samples is not None:
            ingest.samples.note(identified.events, outcomes, context.headers)
    if ingest.observed is not None:
        ingest.observed.note(identified.events, outcomes, identified.quarantined)
    if observer is None:
        return
    if observer.is_on or identified.rejections or set(outcomes.admissions) - {NEW}:
        asyncio.get_running_loop().call_soon(
            observer.decided, identified.events, outcomes, identified.quarantined, context
        )


async def _session_headers(router: Router, session: ClientSession) -> dict[str, str]:
    """Return the headers on the session; none if its lane does not serve."""
    try:
        state = await router.session(session.client_hash, session.session_hash, is_ended=session.is_ended)
    except RetriableError:
        return {}
    return session_headers(state)


def _source_in_head(write_keys: WriteKeys, request: Request) -> Source | None:
    """
    Return the source of the write key in the head, None without one; refusals come before the body is read.

    Raises:
        InvalidWriteKeyError, DisabledWriteKeyError: the key has no enabled source.
        QuotaExceededError: the key has no quota left for it.
    """
    scope = request.scope
    headers = scope[CONTEXT].headers
    write_key = key_in_head(headers, scope["query_string"])
    if not write_key:
        return None
    source = log_in(write_keys, write_key, scope)
    if source.allowance is not None:
        declared = headers.get(b"content-length", b"")
        size_bytes = int(declared) if declared.isdigit() and b"content-encoding" not in headers else 0
        source.allowance.check(events=1, size_bytes=size_bytes)
    return source


async def _body_of(
    ingest: Ingest, request: Request, source: Source | None, yield_to_others: YieldToOthers
) -> bytes:
    """Return the body, or its undamaged part. Raises as read_body, and WriteKeyMissingError."""
    context: RequestContext = request.scope[CONTEXT]
    limits, lease = ingest.body_limits, context.lease
    body = await read_body(
        request.receive, context.headers, limits, lease, yield_to_others, context.note_damage
    )
    if source is None and len(body) > SMALL_BYTES and not _may_have_key(body):
        raise WriteKeyMissingError
    return body


def _check_top(write_keys: WriteKeys, request: Request, top: Mapping[str, Any]) -> None:
    """Refuse a body whose top level has a wrong write key, before its events are parsed. Raises as log_in."""
    if write_key := own_key(top):
        log_in(write_keys, write_key, request.scope)


def _may_have_key(body: bytes) -> bool:
    """Whether a body may have a field `writeKey`, its name escaped or not."""
    return b"writeKey" in body or b"\\u00" in body


def network_of(request: Request) -> str:
    """Return the sender of a request without a write key in its head: its address group."""
    client = request.scope["client"]
    return f"address {client and address_group(client[0])}"


def _owner_of(
    write_keys: WriteKeys,
    request: Request,
    payload: Payload,
    source: Source | None,
    refusal: RequestError | None,
    body: bytes,
) -> Sole | Shares:
    """
    Return whose the items are: that of `source`, of the key in the body, or each that of its own key.

    Raises:
        WriteKeyMissingError: there is no key; of a damaged body, which may have had one, `refusal`.
        InvalidWriteKeyError, DisabledWriteKeyError: no key is good.
    """
    if source is not None:
        return Sole(source, len(payload.items))
    write_key = own_key(payload.top)
    if not write_key:
        keys = keys_of(payload.items)
        distinct = set(keys) - {""}
        if not distinct and not any(map(_is_plain, payload.items)):
            distinct = {key_in(body)} - {""}  # in what is wrapped too often to be read
        if not distinct:
            raise refusal or WriteKeyMissingError  # some SDKs switch themselves off at a 401
        if len(distinct) > 1:
            return _owners_of(write_keys, request, keys)
        write_key = distinct.pop()
    return Sole(log_in(write_keys, write_key, request.scope), len(payload.items))


def _is_plain(item: object) -> bool:
    """Whether an item is an event as it is, whose only key is its own."""
    return isinstance(item, dict) and not is_wrapped(item)


def _owners_of(write_keys: WriteKeys, request: Request, keys: Sequence[str]) -> Shares:
    """Return whose the items of a request are that have several keys."""
    context: RequestContext = request.scope[CONTEXT]
    shares = shares_of(
        keys,
        lambda key: log_in(write_keys, key, request.scope),
        is_replay=is_replay(context.headers),
    )
    first = shares.shares[0]
    context.write_key, context.account, context.source = first.write_key, first.source, first.source.id
    return shares
