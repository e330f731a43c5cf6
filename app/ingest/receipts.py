"""
Receipts: the body of a 200, and its headers.

The body depends only on the events and the partitions and offsets of their originals, with a fixed order of
keys, so the answers to all retries have the same bytes. Values that may differ between retries are in
headers.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter

import orjson
from starlette.responses import Response

from app.ingest.identified import Identified
from app.ingest.prefer import Preferences
from dedupe.decide.admission import COPIES, NEW, STALE, Admission
from dedupe.decide.rejection import QUARANTINE_REASONS, RETRIABLE_CODES, RejectionCode
from dedupe.decide.sessions import SessionState
from dedupe.metrics import counts_of
from dedupe.model.inherited import INHERITED_FROM, place_of
from dedupe.model.record import FLAG_NOT_IDEMPOTENT
from dedupe.model.types import Event, Offset
from dedupe.submission import Outcomes

SUCCESS = b'{"success":true}'

CODES = {**QUARANTINE_REASONS, **RETRIABLE_CODES}


_JSON = (b"content-type", b"application/json")

LIST_BYTES_MAX = 1024 * 1024
"""The limit of each list in an answer. The numbers in it and in the headers are those of all events."""

LIST_CHUNK = 512
"""Items that are encoded together: one by one takes ten times as long."""

LIST_ITEMS_SURE = 500
"""So many items are always below the limit: an item has less than 2 KB, with an id of escaped characters."""

MISSING_RANGES_MAX = 32
"""The limit in a header; the document of the session has all ranges."""

NUMBER_LOST = "a number is stored as null: it is NaN or infinite, too large for 64 bits, or too long"
"""The warning in a receipt. Frozen like REASONS."""

REASONS: dict[str, str] = {
    RejectionCode.NOT_AN_OBJECT: "an event must be a JSON object",
    RejectionCode.EVENT_TOO_LARGE: "the event is larger than allowed",
    RejectionCode.EVENT_TOO_DEEP: "the event is nested deeper than allowed",
    RejectionCode.EVENT_TOO_COMPLEX: "the event has more commas, colons and opening brackets than allowed",
    RejectionCode.TOO_MANY_EVENTS: "these events are beyond the largest number of a request",
    RejectionCode.REQUEST_TOO_LARGE: "the events before this one have used up the bytes of a request",
    RejectionCode.BATCH_FIELDS_TOO_LARGE: (
        "the batch-level context and integrations are too large to be merged into each event, taken "
        "without them"
    ),
    RejectionCode.MESSAGE_ID_INVALID: "messageId must be a string of 1 to 255 bytes, or an integer",
    RejectionCode.TYPE_INVALID: (
        "type must be a string of at most 100 characters, none of them a control character"
    ),
    RejectionCode.CLOUDEVENT_INVALID: (
        'a CloudEvent needs specversion "1.0", and id, source and type as text that is not empty'
    ),
    RejectionCode.SEQUENCE_INVALID: (
        "an event of a client session needs a sequence, a whole number of 64 bits from 1 on"
    ),
    RejectionCode.UNREADABLE: "this part of the body holds no complete event",
    RejectionCode.SCHEMA_ENCODED: "the value is encoded by a schema registry's serializer",
    RejectionCode.SOURCE_NOT_LISTED: "the record names a source that its input does not list",
    RejectionCode.WRITE_KEY_INVALID: (
        "the event's writeKey is unknown or disabled, or the 17th one or later of its request"
    ),
    RejectionCode.CONFLICT: "another event with this messageId was accepted before",
    RejectionCode.SESSION_FENCED: "the client has used a newer epoch",
    RejectionCode.SESSION_EXPIRED: "the session was not used for longer than its lease: begin a new one",
    RejectionCode.SEQUENCE_GAP: "an event before this one is missing, and the request asked for strict order",
    RejectionCode.SEQUENCE_WINDOW_EXCEEDED: (
        "the sequence is more than 512 above what is stored without a gap"
    ),
    RejectionCode.RECORD_TOO_LARGE: "the event is larger than the log takes",
    RejectionCode.RECORD_REFUSED: "the log refuses the event for its content",
}
"""The message of each code of a rejected event. Frozen like the codes, so that answers to retries are
equal."""

SESSION_REASONS: dict[str, str] = {
    **REASONS,
    RejectionCode.CONFLICT: (
        "another event with this sequence or messageId was accepted from this client before"
    ),
}
"""The same for requests with a client session."""


class JSONAnswer(Response):
    """A 200 with JSON, whose headers are bytes already: Starlette would encode each of them."""

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body)), _JSON]


def answer(
    identified: Identified,
    outcomes: Outcomes,
    *,
    preferences: Preferences | None = None,
    wants_receipts: bool,
    advice: Sequence[dict[str, object]] = (),
) -> Response:
    """
    Return the answer to a request whose events are decided.

    Args:
        identified: the request's items.
        outcomes: the outcomes of its events, same order.
        preferences: the client's preferences; the answer names those that were applied.
        wants_receipts: whether the body has receipts by default.
        advice: warnings, in development.
    """
    if preferences is not None and preferences.returned is not None:
        wants_receipts = preferences.returned == "representation"
    admissions = outcomes.admissions
    counts = counts_of(admissions)
    accepted = counts.get(NEW, 0)
    rejected = [
        (rejection.item_index, rejection.message_id, rejection.code) for rejection in identified.rejections
    ]
    duplicates = sum([counts.get(known, 0) for known in COPIES])
    if accepted + duplicates < len(admissions):
        rejected += [
            (index, event.message_id, CODES[admission])
            for event, index, admission in zip(
                identified.events, identified.indexes(), admissions, strict=True
            )
            if admission in CODES
        ]
    body: dict[str, object] = {"success": True}
    if wants_receipts:
        receipts: Iterator[dict[str, object]] = (
            _receipt(event, admission, offset)
            for event, admission, offset in zip(identified.events, *outcomes, strict=True)
            if admission is NEW or admission in COPIES
        )
        if identified.lossy:
            receipts = _with_lost_numbers(receipts, identified, admissions)
        _add_list(body, "receipts", receipts, accepted + duplicates)
    if rejected:
        rejected.sort(key=itemgetter(0))
        reasons = SESSION_REASONS if any([event.session for event in identified.events]) else REASONS
        _add_list(body, "rejected", (_rejected(*item, reasons) for item in rejected), len(rejected))
    if advice:
        body["warnings"] = advice
    headers = _headers(accepted, duplicates, len(rejected), preferences)
    return JSONAnswer(orjson.dumps(body), headers)


def _add_list(body: dict[str, object], name: str, items: Iterator[dict[str, object]], count: int) -> None:
    """Add `count` items to an answer, cut to LIST_BYTES_MAX; then a field says how many are left out."""
    if count <= LIST_ITEMS_SURE:
        body[name] = list(items)
        return
    pieces, listed, left, is_cut = [], 0, LIST_BYTES_MAX - len(b"[]"), False
    while not is_cut and (chunk := list(islice(items, LIST_CHUNK))):
        while chunk and len(piece := orjson.dumps(chunk)) - len(b"]") > left:
            chunk, is_cut = chunk[: len(chunk) // 2], True
        if chunk:
            pieces.append(piece[1:-1])
            listed += len(chunk)
            left -= len(piece) - len(b"]")
    body[name] = orjson.Fragment(b"[%b]" % b",".join(pieces))
    if listed < count:
        body[f"{name}Omitted"] = count - listed


def _headers(
    accepted: int, duplicates: int, rejected: int, preferences: Preferences | None
) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"gateway-accepted", b"%d" % accepted),
        (b"gateway-duplicates", b"%d" % duplicates),
        (b"gateway-rejected", b"%d" % rejected),
    ]
    if duplicates and not accepted:
        headers.append((b"idempotent-replayed", b"true"))
    if preferences is not None and (applied := preferences.applied):
        headers.append((b"preference-applied", applied.encode("latin-1")))
    return headers


def session_headers(state: SessionState | None) -> dict[str, str]:
    """Return the headers on a client session; None: no event of it is stored."""
    if state is None:
        return {"Gateway-Session-Watermark": "0"}
    headers = {"Gateway-Session-Watermark": str(state.watermark)}
    ranges = state.missing()
    if ranges:
        missing = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
        more = ["..."] if len(missing) > MISSING_RANGES_MAX else []
        headers["Gateway-Session-Missing"] = ",".join(missing[:MISSING_RANGES_MAX] + more)
    return headers


def _receipt(event: Event, admission: Admission, offset: Offset) -> dict[str, object]:
    if admission is STALE and event.session is not None:
        return {"messageId": event.message_id, "sequence": event.session.sequence, "stale": True}
    partition = event.partition
    if offset >= INHERITED_FROM:
        partition, offset = place_of(partition, offset)
    receipt: dict[str, object] = {
        "messageId": event.message_id,
        "partition": partition,
        "offset": offset,
    }
    if event.flags & FLAG_NOT_IDEMPOTENT:
        receipt["idempotent"] = False
    if event.session is not None:
        receipt["sequence"] = event.session.sequence
    return receipt


def _with_lost_numbers(
    receipts: Iterator[dict[str, object]], identified: Identified, admissions: Sequence[Admission]
) -> Iterator[dict[str, object]]:
    """Yield receipts, those of events in whose records a number is null with NUMBER_LOST."""
    accepted = (
        index
        for index, admission in zip(identified.indexes(), admissions, strict=True)
        if admission is NEW or admission in COPIES
    )
    for index, receipt in zip(accepted, receipts, strict=True):
        if index in identified.lossy:
            receipt["warnings"] = [NUMBER_LOST]
        yield receipt


def _rejected(index: int, message_id: str | None, code: str, reasons: Mapping[str, str]) -> dict[str, object]:
    rejected: dict[str, object] = {
        "index": index,
        "messageId": message_id,
        "code": code,
        "message": reasons[code],
    }
    if code in RETRIABLE_CODES.values():
        rejected["retriable"] = True
    return rejected
