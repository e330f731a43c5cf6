"""The paths of client sessions: a new session's id, and the state of a session."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.auth.write_keys import INGEST, Source, find_write_key, log_in
from app.http.body import read_body
from app.http.errors import InvalidJSONError, SessionFieldsInvalidError, SessionUnknownError
from app.http.request_context import CONTEXT, RequestContext
from app.ingest.client_sessions import client_of, is_ksuid
from app.ingest.message_ids import PAYLOAD_BYTES, fresh_id, given_session
from app.ingest.routes.events import Ingest, network_of
from app.ingest.routes.parsing import idempotency_key
from app.ingest.routes.path_table import Handler
from app.ingest.routes.paths import Kind, Path
from dedupe.decide.sessions import SessionState
from dedupe.model.clock import Deadline
from dedupe.model.json_document import read_document

BODY_BYTES_MAX = 4096


def session_handlers(ingest: Ingest) -> dict[Kind, Handler]:
    """Return the handlers of the paths of client sessions."""

    source_hash = ingest.identifier.identity.source_hash

    async def post(request: Request, _path: Path) -> Response:
        request.scope[CONTEXT].source_hash = source_hash
        return await post_session(ingest, request)

    async def get(request: Request, _path: Path) -> Response:
        request.scope[CONTEXT].source_hash = source_hash
        return await get_session(ingest, request, request.path_params["session"])

    return {Kind.SESSIONS: post, Kind.SESSION: get}


async def post_session(ingest: Ingest, request: Request) -> Response:
    """
    Return the id of a new session; with an Idempotency-Key, the same one for retries.

    Nothing is stored: a session begins with its first event.

    Raises:
        RequestError: the request is wrong.
        QuotaExceededError: the key has no quota left for it.
    """
    context: RequestContext = request.scope[CONTEXT]
    headers = context.headers
    top = await _body_of(ingest, request, context)
    source = _source_of(ingest, request, context, top)
    client = client_of(headers, top)
    if client is None:
        raise SessionFieldsInvalidError(detail="client must be given")
    key = idempotency_key(headers)
    if key is None:
        session = fresh_id(ingest.clock.now_ms(), ingest.identifier.random_bytes(PAYLOAD_BYTES))
    else:
        session = given_session(source.id, client, key)
    return _json({"session": session})


async def get_session(ingest: Ingest, request: Request, session: str) -> Response:
    """
    Return the state of a client's session.

    Raises:
        RequestError: the request is wrong.
        SessionUnknownError: the session is too old, or no event of it was stored.
        RetriableError: the partition is not served now, or the key has no quota left for it.
    """
    context: RequestContext = request.scope[CONTEXT]
    source = _source_of(ingest, request, context, {})
    client = client_of(context.headers, {})
    if client is None:
        raise SessionFieldsInvalidError(detail="client must be given")
    state = None
    if is_ksuid(session):
        identity = ingest.identifier.identity
        state = await ingest.router.session(
            identity.client_hash(source.id, client),
            identity.session_hash(source.id, client, session),
            deadline=Deadline(ingest.clock, ingest.answer_timeout_s),
        )
    if state is None:
        raise SessionUnknownError
    return _json(_document(client, session, state))


def _source_of(ingest: Ingest, request: Request, context: RequestContext, top: Mapping[str, Any]) -> Source:
    """Return the source of a request. Raises RequestError, QuotaExceededError."""
    write_key = find_write_key(context.headers, request.scope["query_string"], top)
    source = log_in(ingest.write_keys, write_key, request.scope)
    source.check(INGEST)
    if source.allowance is not None:
        source.allowance.take(events=0, size_bytes=0)
    return source


def _document(client: str, session: str, state: SessionState) -> dict[str, object]:
    document: dict[str, object] = {
        "client": client,
        "session": session,
        "epoch": state.epoch,
        "watermark": state.watermark,
        "acknowledgedThrough": state.acknowledged_through,
        "highest": state.highest,
        "missing": state.missing(),
    }
    return document | {"expired": True} if state.is_evicted else document


async def _body_of(ingest: Ingest, request: Request, context: RequestContext) -> dict[str, Any]:
    """Return the body's top level; an absent body counts as an empty object."""
    limits = replace(ingest.body_limits, bytes_max=BODY_BYTES_MAX)
    yield_to_others = partial(ingest.scheduler.yield_to_others, network_of(request))
    body = await read_body(request.receive, context.headers, limits, context.lease, yield_to_others)
    if not body:
        return {}
    try:
        top = read_document(body)
    except ValueError as err:
        raise InvalidJSONError from err
    if not isinstance(top, dict):
        raise InvalidJSONError(detail="it must be an object")
    return top


def _json(document: dict[str, object]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
