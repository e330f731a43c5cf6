"""
Receipts: the body of a 200, and the headers that tell a first answer from a replay.

The body depends on the events and their originals' places alone, with a fixed order of keys, so
every retry of a request gets the same bytes. What changes between tries stands in headers.
"""

from collections.abc import Sequence

import orjson
from starlette.responses import Response

from app.ingest.identify import (
    EVENT_TOO_DEEP,
    EVENT_TOO_LARGE,
    MESSAGE_ID_INVALID,
    NOT_AN_OBJECT,
    TYPE_INVALID,
    Identified,
    Rejection,
)
from app.ingest.prefer import Return
from dedupe.admission import Admission
from dedupe.lane import Outcomes
from dedupe.record import FLAG_NOT_IDEMPOTENT
from dedupe.router import CONFLICT
from dedupe.types import Event, Offset

SUCCESS = b'{"success":true}'

REASONS = {
    NOT_AN_OBJECT: "an event must be a JSON object",
    EVENT_TOO_LARGE: "the event is larger than allowed",
    EVENT_TOO_DEEP: "the event is nested deeper than allowed",
    MESSAGE_ID_INVALID: "messageId must be a string of 1 to 255 bytes",
    TYPE_INVALID: "type must be a string of at most 100 characters, none of them a control character",
    CONFLICT: "another event with this messageId was accepted before",
}
"""What a receipt says of an event that was kept apart. Frozen like the codes: answers repeat."""


def answer(
    found: Identified,
    outcomes: Outcomes,
    *,
    preference: Return | None,
    wants_receipts: bool,
    advice: Sequence[dict[str, object]] = (),
) -> Response:
    """
    Build the answer to a request all of whose events have their verdict.

    Args:
        found: the request's items.
        outcomes: of found.events, same order.
        preference: what the client prefers; the answer says that it was heeded.
        wants_receipts: whether the body lists where each event is, without a preference.
        advice: what is said besides, in development.
    """
    if preference is not None:
        wants_receipts = preference == "representation"
    admissions = outcomes.admissions
    accepted, conflicts = admissions.count(Admission.NEW), admissions.count(Admission.CONFLICT)
    rejections = list(found.rejections)
    if conflicts:
        rejections += [
            Rejection(place, event.message_id, CONFLICT)
            for event, place, admission in zip(found.events, found.places, admissions, strict=True)
            if admission is Admission.CONFLICT
        ]
    body: dict[str, object] = {"success": True}
    if wants_receipts:
        body["receipts"] = [
            _receipt(event, offset)
            for event, admission, offset in zip(found.events, *outcomes, strict=True)
            if admission is not Admission.CONFLICT
        ]
    if rejections:
        rejections.sort(key=lambda rejection: rejection.place)
        body["rejected"] = [_rejected(rejection) for rejection in rejections]
    if advice:
        body["warnings"] = advice
    headers = _headers(accepted, len(admissions) - accepted - conflicts, preference)
    return Response(orjson.dumps(body), headers=headers, media_type="application/json")


def _headers(accepted: int, duplicates: int, preference: Return | None) -> dict[str, str]:
    headers = {"Gateway-Accepted": str(accepted), "Gateway-Duplicates": str(duplicates)}
    if duplicates and not accepted:
        headers["Idempotent-Replayed"] = "true"
    if preference is not None:
        headers["Preference-Applied"] = f"return={preference}"
    return headers


def _receipt(event: Event, offset: Offset) -> dict[str, object]:
    receipt: dict[str, object] = {
        "messageId": event.message_id,
        "partition": event.partition,
        "offset": offset,
    }
    if event.flags & FLAG_NOT_IDEMPOTENT:
        receipt["idempotent"] = False
    return receipt


def _rejected(rejection: Rejection) -> dict[str, object]:
    return {
        "index": rejection.place,
        "messageId": rejection.message_id,
        "code": rejection.code,
        "message": REASONS[rejection.code],
    }
