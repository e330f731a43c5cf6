"""Why an event is not accepted: the codes of receipts, quarantine records and counters. They are frozen."""

from enum import StrEnum

from dedupe.decide.admission import Admission


class RejectionCode(StrEnum):
    """The reason of one event."""

    NOT_AN_OBJECT = "not_an_object"
    EVENT_TOO_LARGE = "event_too_large"
    EVENT_TOO_DEEP = "event_too_deep"
    MESSAGE_ID_INVALID = "message_id_invalid"
    TYPE_INVALID = "type_invalid"
    SEQUENCE_INVALID = "sequence_invalid"
    CONFLICT = "conflict"
    SESSION_FENCED = "session_fenced"
    SESSION_EXPIRED = "session_expired"
    SEQUENCE_GAP = "sequence_gap"
    SEQUENCE_WINDOW_EXCEEDED = "sequence_window_exceeded"


QUARANTINE_REASONS = {
    Admission.CONFLICT: RejectionCode.CONFLICT,
    Admission.FENCED: RejectionCode.SESSION_FENCED,
    Admission.EXPIRED: RejectionCode.SESSION_EXPIRED,
}
"""Of events that have an identity and are quarantined all the same."""

RETRIABLE_CODES = {
    Admission.GAP: RejectionCode.SEQUENCE_GAP,
    Admission.TOO_FAR: RejectionCode.SEQUENCE_WINDOW_EXCEEDED,
}
"""Of events that are not stored anywhere; their client may send them again."""
