"""From the socket to a request and back: connections, limits, bodies, client addresses, CORS, problems."""

from app.http.bare_application import bare_application
from app.http.body import BodyLimits, read_body
from app.http.body_memory import LEASE, BodyMemory, Lease, Leased
from app.http.client_address import TrustedProxies, crowd_of
from app.http.connections import Connections
from app.http.cors import CORS
from app.http.errors import (
    BatchMissingError,
    BodyMemoryFullError,
    BodyTooComplexError,
    DisabledWriteKeyError,
    FingerprintsInvalidError,
    IdempotencyKeyInvalidError,
    InvalidJSONError,
    InvalidWriteKeyError,
    QuotaExceededError,
    RequestError,
    RequestTooLargeError,
    ScopeMissingError,
    SessionFieldsConflictError,
    SessionFieldsInvalidError,
    SessionUnknownError,
    TooManyConnectionsError,
    TooManyEventsError,
    WriteKeyMissingError,
)
from app.http.in_flight import InFlight
from app.http.port import ConnectionLimits, Port
from app.http.problems import PROBLEMS, Problem, Problems
from app.http.protocol import EdgeProtocol
from app.http.refusal_log import RefusalLog
from app.http.request_hook import RequestHook
from app.http.request_metrics import RequestMetrics
from app.http.turns import Turn, Turns

__all__ = [
    "CORS",
    "LEASE",
    "PROBLEMS",
    "BatchMissingError",
    "BodyLimits",
    "BodyMemory",
    "BodyMemoryFullError",
    "BodyTooComplexError",
    "ConnectionLimits",
    "Connections",
    "DisabledWriteKeyError",
    "EdgeProtocol",
    "FingerprintsInvalidError",
    "IdempotencyKeyInvalidError",
    "InFlight",
    "InvalidJSONError",
    "InvalidWriteKeyError",
    "Lease",
    "Leased",
    "Port",
    "Problem",
    "Problems",
    "QuotaExceededError",
    "RefusalLog",
    "RequestError",
    "RequestHook",
    "RequestMetrics",
    "RequestTooLargeError",
    "ScopeMissingError",
    "SessionFieldsConflictError",
    "SessionFieldsInvalidError",
    "SessionUnknownError",
    "TooManyConnectionsError",
    "TooManyEventsError",
    "TrustedProxies",
    "Turn",
    "Turns",
    "WriteKeyMissingError",
    "bare_application",
    "crowd_of",
    "read_body",
]
