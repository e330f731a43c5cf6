"""The codes of rejection in receipts, quarantine records and counters. Frozen."""

from enum import StrEnum

from dedupe.decide.admission import Admission


class RejectionCode(StrEnum):
    """Why an event is not accepted."""

    NOT_AN_OBJECT = "not_an_object"
    EVENT_TOO_LARGE = "event_too_large"
    EVENT_TOO_DEEP = "event_too_deep"
    EVENT_TOO_COMPLEX = "event_too_complex"
    TOO_MANY_EVENTS = "too_many_events"
    REQUEST_TOO_LARGE = "request_too_large"
    BATCH_FIELDS_TOO_LARGE = "batch_fields_too_large"
    MESSAGE_ID_INVALID = "message_id_invalid"
    TYPE_INVALID = "type_invalid"
    CLOUDEVENT_INVALID = "cloudevent_invalid"
    SEQUENCE_INVALID = "sequence_invalid"
    UNREADABLE = "unreadable"
    SCHEMA_ENCODED = "schema_encoded"
    SOURCE_NOT_LISTED = "source_not_listed"
    WRITE_KEY_INVALID = "write_key_invalid"
    CONFLICT = "conflict"
    SESSION_FENCED = "session_fenced"
    SESSION_EXPIRED = "session_expired"
    SEQUENCE_GAP = "sequence_gap"
    SEQUENCE_WINDOW_EXCEEDED = "sequence_window_exceeded"
    RECORD_TOO_LARGE = "record_too_large"
    RECORD_REFUSED = "record_refused"


QUARANTINE_REASONS = {
    Admission.CONFLICT: RejectionCode.CONFLICT,
    Admission.FENCED: RejectionCode.SESSION_FENCED,
    Admission.EXPIRED: RejectionCode.SESSION_EXPIRED,
    Admission.TOO_LARGE: RejectionCode.RECORD_TOO_LARGE,
    Admission.REFUSED: RejectionCode.RECORD_REFUSED,
}
"""The reasons of quarantined events that have an identity."""

RETRIABLE_CODES = {
    Admission.GAP: RejectionCode.SEQUENCE_GAP,
    Admission.TOO_FAR: RejectionCode.SEQUENCE_WINDOW_EXCEEDED,
}
"""The codes of events that are not stored; clients may send them again."""
