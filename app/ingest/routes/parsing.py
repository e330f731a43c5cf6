"""
Parses the body of a request; of one that is not JSON it salvages what it can, unless the client wants all.
"""

from collections.abc import Mapping

from starlette.requests import Request

from app.http.errors import (
    BatchMissingError,
    BodyNotDecompressableError,
    FingerprintsInvalidError,
    IdempotencyKeyInvalidError,
    InvalidJSONError,
    RequestError,
)
from app.http.fair_scheduler import YieldToOthers
from app.http.request_context import CONTEXT, RequestContext
from app.ingest.client_sessions import CLIENT, SESSION, STORED
from app.ingest.large_json import JSONLimits
from app.ingest.native import NativeModule
from app.ingest.parse import Parse, parse_batch, parse_cloudevents, parse_event, parse_events
from app.ingest.payload import Expected, Payload
from app.ingest.prefer import Preferences, preferences_in
from app.ingest.salvaged import salvaged
from dedupe.model.identity import FINGERPRINT_BYTES
from dedupe.model.types import Fingerprint

FINGERPRINTS = b"gateway-fingerprints"
"""Requires the scope replay: with a wrong fingerprint, another event would be answered as a duplicate."""

IDEMPOTENCY_KEY_BYTES_MAX = 255


async def parse_or_salvage(
    parse: Parse,
    body: bytes,
    limits: JSONLimits,
    yield_to_others: YieldToOthers,
    request: Request,
    *,
    is_native: bool,
    native: NativeModule | None = None,
) -> tuple[Payload, RequestError | None]:
    """
    Return the items of a body, and why it was refused if they are what could be salvaged of it.

    Raises:
        InvalidJSONError, BatchMissingError, BodyNotDecompressableError: it is no batch, or its compressed
            data are damaged, and the client wants all or nothing.
        GatewayError: those of `parse`.
        BodyMemoryFullError: there is no memory for its items.
    """
    context: RequestContext = request.scope[CONTEXT]
    is_strict = is_replay(context.headers) or preferences_of(request).is_strict
    if is_strict and context.damage is not None:
        raise BodyNotDecompressableError from context.damage
    if native is not None and parse in _OF_BODIES:
        plain = await native.read(
            body, limits, yield_to_others, _OF_BODIES[parse], needs_key=not context.write_key
        )
        if plain is not None:
            return plain, None
    try:
        return await parse(body, limits, yield_to_others), None
    except (InvalidJSONError, BatchMissingError) as err:
        if is_strict or parse not in _SALVAGED:
            raise
        refusal = err
    reads_sessions = is_native and not {CLIENT, SESSION} <= context.headers.keys()
    return await salvaged(body, limits, yield_to_others, reads_sessions=reads_sessions), refusal


def preferences_of(request: Request) -> Preferences:
    """Return the preferences of a request."""
    if b"prefer" not in request.scope[CONTEXT].headers:
        return _NONE
    return preferences_in(b",".join(value for name, value in request.scope["headers"] if name == b"prefer"))


def is_replay(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request sends stored records again."""
    return FINGERPRINTS in headers or STORED in headers


def idempotency_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the header's bytes, None without it. Raises IdempotencyKeyInvalidError."""
    key = headers.get(b"idempotency-key")
    if key is not None and not 0 < len(key) <= IDEMPOTENCY_KEY_BYTES_MAX:
        raise IdempotencyKeyInvalidError(detail=f"it has {len(key)}")
    return key


def fingerprints_of(header: bytes, count: int) -> list[Fingerprint]:
    """Return the original fingerprints of so many stored records. Raises FingerprintsInvalidError."""
    try:
        fingerprints = [bytes.fromhex(part.decode("ascii")) for part in header.split(b",")]
    except ValueError:
        fingerprints = []
    if len(fingerprints) != count or any(len(each) != FINGERPRINT_BYTES for each in fingerprints):
        raise FingerprintsInvalidError(detail=f"the request has {count} events")
    return fingerprints


_NONE = Preferences()
_OF_BODIES: Mapping[Parse, Expected] = {
    parse_batch: Expected.BATCH,
    parse_events: Expected.EVENTS,
    parse_event: Expected.EVENT,
}
"""What the native module reads."""
_SALVAGED = frozenset({*_OF_BODIES, parse_cloudevents})
"""Other parsers read something else than the body."""
