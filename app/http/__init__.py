"""From the socket to a request and back: connections, limits, bodies, client addresses, CORS, problems."""

from app.http.bare_application import bare_application
from app.http.body import BodyLimits, read_body
from app.http.body_memory import BodyMemory, Lease
from app.http.client_address import TrustedProxies, address_group
from app.http.connections import Connections
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
from app.http.fair_scheduler import FairScheduler, YieldToOthers
from app.http.port import ConnectionLimits, Port
from app.http.problems import PROBLEMS, Problem, Problems
from app.http.protocol import EdgeProtocol
from app.http.refusal_log import RefusalLog
from app.http.request_context import CONTEXT, Leased, RequestContext
from app.http.request_metrics import RequestMetrics
from app.http.request_middleware import RequestMiddleware

__all__ = [
    "CONTEXT",
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
    "FairScheduler",
    "FingerprintsInvalidError",
    "IdempotencyKeyInvalidError",
    "InvalidJSONError",
    "InvalidWriteKeyError",
    "Lease",
    "Leased",
    "Port",
    "Problem",
    "Problems",
    "QuotaExceededError",
    "RefusalLog",
    "RequestContext",
    "RequestError",
    "RequestMetrics",
    "RequestMiddleware",
    "RequestTooLargeError",
    "ScopeMissingError",
    "SessionFieldsConflictError",
    "SessionFieldsInvalidError",
    "SessionUnknownError",
    "TooManyConnectionsError",
    "TooManyEventsError",
    "TrustedProxies",
    "WriteKeyMissingError",
    "YieldToOthers",
    "address_group",
    "bare_application",
    "read_body",
]
