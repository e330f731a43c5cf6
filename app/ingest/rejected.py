"""Builds the events of the quarantine topic for items that are refused."""

from app.ingest.client_sessions import SEQUENCE
from app.ingest.deep_json import dumps_any
from app.ingest.identified import RefusedError
from app.ingest.items import Fragment, Oversize
from app.ingest.record_values import WRITE_KEY
from dedupe.decide.rejection import RejectionCode
from dedupe.model.identity import RETRY_FIELDS, fingerprint_of
from dedupe.model.quarantine import OwnKey, Quarantine, in_dialect
from dedupe.model.record import FLAG_ID_ASSIGNED
from dedupe.model.types import Event


def refusal_of_key(event: Event, digest: bytes) -> RefusedError:
    """Return why an event is refused whose only fault is its write key."""
    refusal = RefusedError(RejectionCode.WRITE_KEY_INVALID, event.value)
    refusal.key_digest, refusal.fingerprint = digest, event.fingerprint
    refusal.assigned_id = event.message_id if event.flags & FLAG_ID_ASSIGNED else ""
    return refusal


def quarantine_events(
    quarantine: Quarantine,
    item: object,
    refusal: RefusedError,
    *,
    source: str,
    message_id: str,
    ignored: frozenset[str],
    flags: int = 0,
) -> tuple[Event, ...]:
    """
    Return the events that quarantine an item: one, or the pieces of a long one.

    Args:
        quarantine: builds them.
        item: the item.
        refusal: why it is refused.
        source: whose it is.
        message_id: that of the item or the one that it was given, "" without any.
        ignored: the fields that are not content.
        flags: those of the item's dialect.
    """
    known, value = refusal.content, refusal.value
    if isinstance(item, Fragment):
        value = item.content
    elif isinstance(item, dict):
        if refusal.code == RejectionCode.SEQUENCE_INVALID:  # the one difference between such events
            ignored -= {SEQUENCE}
        known = known or dumps_any({name: item[name] for name in item if name not in ignored})
        item = {name: value for name, value in item.items() if name != WRITE_KEY}
    content = dumps_any(item) if value is None else value
    fingerprint = b""
    if len(content) <= quarantine.whole_bytes_max:
        fingerprint = fingerprint_of((known or content) + refusal.key_digest)
    elif isinstance(item, dict):
        # Pieces are identified by their bytes, which must be those of every try.
        content = dumps_any({name: item[name] for name in item if name not in RETRY_FIELDS})
        fingerprint = fingerprint_of(content)  # if it fits into a record now
    events = quarantine.events(
        source=source,
        message_id=message_id,
        fingerprint=fingerprint,
        content=content,
        reason=refusal.code,
        position=item.position if isinstance(item, Fragment) else None,
        is_json=not isinstance(item, Fragment | Oversize),  # these may be unparsed
        own_key=OwnKey(refusal.key_digest, refusal.fingerprint) if refusal.key_digest else None,
    )
    return tuple(in_dialect(events, flags))
