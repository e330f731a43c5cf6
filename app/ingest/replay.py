"""
Replays: a quarantined event is identified and submitted again, like an event of a request.

The same rules decide, and a second replay is a duplicate: an event without an id gets one that depends on its
record. A record that cannot be sent unchanged is skipped, unless the options say how to change it. What is no
event by itself, such as a part of a damaged body, is sent as a body of its own, in which events are found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson

from app.auth.write_keys import WriteKeys
from app.http.errors import BatchMissingError, InvalidJSONError, RequestError
from app.ingest.deep_json import dumps_any
from app.ingest.event_limits import STEP_BYTES
from app.ingest.identified import Arrival, Dialect, Identified
from app.ingest.large_json import JSONLimits
from app.ingest.parse import parse_batch, parse_events
from app.ingest.payload import Payload
from app.ingest.receipts import answer
from app.ingest.routes.events import Ingest
from app.ingest.salvaged import salvaged
from dedupe.decide.rejection import RejectionCode
from dedupe.model.clock import Deadline
from dedupe.model.json_document import read_document, read_stored
from dedupe.storage.quarantine_reader import Kept, Whole

NEEDS_NEW_ID: dict[str, str] = {
    RejectionCode.CONFLICT: (
        "its id belongs to another event; --new-id (new_id=true) stores it under an id of its own"
    ),
    RejectionCode.MESSAGE_ID_INVALID: (
        "its id is not valid; --new-id (new_id=true) stores it under another one"
    ),
}

NEEDS_SOURCE: dict[str, str] = {
    RejectionCode.WRITE_KEY_INVALID: (
        "its own write key is not valid: add it to the file; or --to-source NAME (to_source=NAME) stores it "
        "under a source"
    ),
}

STILL: dict[str, str] = {
    RejectionCode.EVENT_TOO_LARGE: "it is larger than GATEWAY_EVENT_BYTES_MAX, with what is added to it",
    RejectionCode.EVENT_TOO_COMPLEX: "it has more commas, colons and opening brackets than allowed",
}
"""Why events are not sent again that would only be quarantined again, byte by byte."""

NO_EVENT = frozenset({RejectionCode.UNREADABLE, RejectionCode.NOT_AN_OBJECT})
"""The codes of what is no event."""

LEVELS_MAX = 8
"""Of texts within texts that a replay unwraps; a request's body is unwrapped once."""

_WRAPPED = (b"[", b'"')
"""The first bytes of JSON that is no event, but may hold some."""


class Changes(NamedTuple):
    """How events may be changed that cannot be stored as they are."""

    may_renew_id: bool = False
    to_source: str | None = None
    """The source of events that came with an unknown write key of their own."""


class Result(NamedTuple):
    """The result of one record's replay."""

    name: str
    """accepted, duplicate, rejected, failed, skipped, or ready (not sent yet)."""
    why: str | None = None
    receipt: dict[str, Any] | None = None
    events: dict[str, int] | None = None
    """Of a body: how many events in it were accepted, duplicates and rejected."""

    def document(self, kept: Kept) -> dict[str, Any]:
        """Return the result with its record."""
        fields: dict[str, Any] = {
            "partition": kept.place.partition,
            "offset": kept.place.offset,
            "reason": kept.reason,
            "source": kept.source,
            "messageId": kept.message_id,
            "result": self.name,
        }
        if self.why is not None:
            fields["why"] = self.why
        if self.receipt is not None:
            fields["receipt"] = self.receipt
        if self.events is not None:
            fields["events"] = self.events
        return fields


READY = Result("ready")

COUNTS = ("Accepted", "Duplicates", "Rejected")
"""The headers of an answer that count, without their prefix."""

Replay: TypeAlias = Callable[[Whole, Changes], Awaitable[Result]]
"""Replays a whole event in this process. Raises as Router.submit does."""


def judge(kept: Kept, changes: Changes, problem: str | None = None) -> Result:
    """Return ready if a record can be sent, otherwise skipped with the reason; `problem`: of its whole."""
    why = problem
    if kept.is_truncated:
        why = "only its first bytes are stored"
    elif problem is None:
        why = _obstacle(kept, changes)
    return READY if why is None else Result("skipped", why)


def _obstacle(kept: Kept, changes: Changes) -> str | None:
    """Return why a whole event cannot be sent with these changes."""
    is_one = kept.pieces == 1 and kept.is_json
    if kept.reason == RejectionCode.NOT_AN_OBJECT and is_one and not kept.content.startswith(_WRAPPED):
        return "it is not an event"
    if kept.reason == RejectionCode.BATCH_FIELDS_TOO_LARGE:
        return "it has the batch-level fields of events that were stored without them"
    if not changes.may_renew_id and kept.reason in NEEDS_NEW_ID:
        return NEEDS_NEW_ID[kept.reason]
    if changes.to_source is None and kept.reason in NEEDS_SOURCE and kept.key_sha256 is None:
        return NEEDS_SOURCE[kept.reason]
    return None


def is_body(kept: Kept) -> bool:
    """Whether a record is sent as a body of its own; otherwise it is one event."""
    return kept.reason == RejectionCode.NOT_AN_OBJECT or (not kept.is_json and kept.reason not in STILL)


def body_of(kept: Kept, content: bytes) -> bytes:
    """Return the body of its request: for an event an array, since an event may have a field `batch`."""
    if is_body(kept):
        return content
    if kept.reason in NEEDS_NEW_ID:
        fields = read_stored(content)
        assert isinstance(fields, dict)
        if kept.is_cloudevent:
            fields["id"] = key_of(kept)
        fields.pop("messageId", None)
        content = dumps_any(fields)
    return b"[" + content + b"]"


def key_of(kept: Kept) -> str:
    """Return the Idempotency-Key of its request, for events without an id."""
    return f"quarantine-{kept.key.hex()}"


def result_of(document: dict[str, Any], headers: Mapping[str, str], *, is_body: bool) -> Result:
    """Return the result of an answer to a record's request; its headers count, its lists may be cut."""
    accepted, duplicates, rejections = (int(headers[f"Gateway-{name}"]) for name in COUNTS)
    rejected = document.get("rejected", [])
    name = "accepted" if accepted else "duplicate" if duplicates else "rejected"
    if not is_body:
        why = rejected[0]["code"] if rejected else None
        return Result(name, why, receipt=None if rejected else document["receipts"][0])
    counts = {"accepted": accepted, "duplicate": duplicates, "rejected": rejections}
    codes = ", ".join(sorted({each["code"] for each in rejected}))
    return Result(name, codes or None, events=counts)


def source_for(kept: Kept, changes: Changes, write_keys: WriteKeys) -> str | None:
    """Return the source under which a record is stored, None while its own write key is not good."""
    if kept.reason not in NEEDS_SOURCE:
        return kept.source
    if changes.to_source is not None or kept.key_sha256 is None:
        return changes.to_source
    source = write_keys.source_of_digest(bytes.fromhex(kept.key_sha256))
    return None if source is None else source.id


def replay_by(ingest: Ingest) -> Replay:
    """Return a Replay within this process, without write key and quota."""

    async def replay(whole: Whole, changes: Changes) -> Result:
        kept = whole.kept
        verdict = judge(kept, changes, whole.problem)
        if verdict != READY:
            return verdict
        if (source := source_for(kept, changes, ingest.write_keys)) is None:
            return Result("skipped", NEEDS_SOURCE[kept.reason])
        try:
            identified, received_ms = await identified_in(kept, whole.content, source)
        except RequestError as err:
            return Result("skipped", f"{err.code}: {err.detail}" if err.detail else err.code)
        codes = [rejection.code for rejection in identified.rejections]
        if not identified.events and is_body(kept) and NO_EVENT.issuperset(codes):
            return Result("skipped", "there is no event in it")
        if not identified.events and len(codes) == 1 and codes[0] in STILL:
            return Result("skipped", STILL[codes[0]])
        outcomes = await ingest.router.submit(
            identified.events,
            identified.quarantined,
            received_ms=received_ms,
            deadline=Deadline(ingest.clock, ingest.answer_timeout_s),
        )
        response = answer(identified, outcomes, wants_receipts=True)
        return result_of(
            orjson.loads(response.body),
            response.headers,
            is_body=is_body(kept),
        )

    async def identified_in(kept: Kept, content: bytes, source: str) -> tuple[Identified, int]:
        """Return the events of a record, and their time of arrival. Raises RequestError."""
        limits = JSONLimits(ingest.request_events_max, ingest.identifier.limits.event_bytes_max)
        payload = await _payload_of(kept, content, limits)
        received_ms = ingest.clock.now_ms()
        fingerprints = [] if is_body(kept) else kept.fingerprints
        arrival = Arrival(
            source,
            received_ms,
            idempotency_key=key_of(kept).encode(),
            fingerprints=fingerprints,
            dialect=Dialect.CLOUDEVENTS if kept.is_cloudevent else Dialect.EVENTS,
        )
        identified = Identified()
        items = ingest.identifier.identify(payload, arrival, lossy=identified.lossy)
        while identified.take(items, STEP_BYTES):
            await _yield_to_others(STEP_BYTES)
        return identified, received_ms

    return replay


async def _payload_of(kept: Kept, content: bytes, limits: JSONLimits) -> Payload:
    """Return the events of a whole record. Raises RequestError: an event cannot be parsed."""
    if not is_body(kept):
        return await parse_events(body_of(kept, content), limits, _yield_to_others)
    for _ in range(LEVELS_MAX):
        try:
            # Of bytes that were no event, an object is an event only if it looks like one.
            return await parse_batch(content, limits, _yield_to_others)
        except InvalidJSONError:
            break
        except BatchMissingError:
            inner = read_document(content) if content.lstrip().startswith(b'"') else None
            if not isinstance(inner, str):
                break
            content = inner.encode()
    # As an item of a batch: what follows the last bracket of an event there is a part of it.
    return await salvaged(b"[%b]" % content, limits, _yield_to_others)


async def _yield_to_others(_size_bytes: int) -> None:
    await asyncio.sleep(0)
