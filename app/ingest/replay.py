"""
Replays: a quarantined event is identified and submitted again, like an event of a request.

The same rules decide, and a second replay is a duplicate: an event without an id gets one that depends on its
record. A record that cannot be sent unchanged is skipped, unless a new id is allowed.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import orjson

from app.ingest.identify import Arrival, Identified
from app.ingest.large_json import JSONLimits
from app.ingest.payload import parse_events
from app.ingest.receipts import answer
from app.ingest.routes.events import Ingest
from dedupe.decide.rejection import RejectionCode
from dedupe.model.clock import Deadline
from dedupe.storage.quarantine_reader import Kept

NEEDS_NEW_ID: dict[str, str] = {
    RejectionCode.CONFLICT: (
        "its id belongs to another event; --new-id (new_id=true) stores it under an id of its own"
    ),
    RejectionCode.MESSAGE_ID_INVALID: (
        "its id is not valid; --new-id (new_id=true) stores it under another one"
    ),
}


class Result(NamedTuple):
    """The result of one record's replay."""

    name: str
    """accepted, duplicate, rejected, failed, skipped, or ready (not sent yet)."""
    why: str | None = None
    receipt: dict[str, Any] | None = None

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
        return fields


READY = Result("ready")

Replay: TypeAlias = Callable[[Kept, bool], Awaitable[Result]]
"""Replays a record in this process; True: under a new id if it needs one. Raises as Router.submit does."""


def judge(kept: Kept, *, may_renew_id: bool) -> Result:
    """Return ready if a record can be sent, otherwise skipped with the reason."""
    if kept.is_truncated:
        return Result("skipped", "only its first bytes are stored")
    if kept.reason == RejectionCode.NOT_AN_OBJECT:
        return Result("skipped", "it is not an event")
    if kept.reason in NEEDS_NEW_ID and not may_renew_id:
        return Result("skipped", NEEDS_NEW_ID[kept.reason])
    return READY


def body_of(kept: Kept) -> bytes:
    """Return the body of its request: an array, since an event may have a field `batch`."""
    event = kept.content
    if kept.reason in NEEDS_NEW_ID:
        fields = orjson.loads(event)
        fields.pop("messageId", None)
        event = orjson.dumps(fields)
    return b"[" + event + b"]"


def key_of(kept: Kept) -> str:
    """Return the Idempotency-Key of its request, for events without an id."""
    return f"quarantine-{kept.key.hex()}"


def result_of(document: dict[str, Any], *, is_new: bool) -> Result:
    """Return the result of an answer to a record's request."""
    if rejected := document.get("rejected"):
        return Result("rejected", rejected[0]["code"])
    return Result("accepted" if is_new else "duplicate", receipt=document["receipts"][0])


def replay_by(ingest: Ingest) -> Replay:
    """Return a Replay within this process, without write key and quota."""

    async def replay(kept: Kept, may_renew_id: bool) -> Result:
        verdict = judge(kept, may_renew_id=may_renew_id)
        if verdict != READY:
            return verdict
        limits = JSONLimits(1, ingest.identifier.limits.event_bytes_max)
        payload = await parse_events(body_of(kept), limits, _no_turn)
        received_ms = ingest.clock.now_ms()
        arrival = Arrival(kept.source, received_ms, idempotency_key=key_of(kept).encode())
        identified = Identified()
        identified.take(ingest.identifier.identify(payload, arrival))
        outcomes = await ingest.router.submit(
            identified.events,
            identified.quarantined,
            received_ms=received_ms,
            deadline=Deadline(ingest.clock, ingest.answer_timeout_s),
        )
        response = answer(identified, outcomes, wants_receipts=True)
        return result_of(orjson.loads(response.body), is_new=response.headers["Gateway-Accepted"] == "1")

    return replay


async def _no_turn(_size_bytes: int) -> None:
    """Do not yield: a record of the quarantine is small."""
