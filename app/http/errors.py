"""The errors of the ingest port; app.http.problems has the HTTP answer of each code."""

from dedupe.model.errors import GatewayError, RetriableError


class RequestError(GatewayError):
    """The request is wrong: no retry can succeed, and nothing was accepted."""

    code = "bad_request"


class HeadTooLargeError(RequestError):
    """The request line and headers have more bytes, or more fields, than allowed."""

    code = "head_too_large"


class BodyTooLargeError(RequestError):
    """The body has more bytes than allowed, on the wire or inflated."""

    code = "body_too_large"


class BodyNotDecompressableError(RequestError):
    """The body is compressed by its Content-Encoding or its first bytes, and is damaged or truncated."""

    code = "body_not_decompressable"


class UnsupportedEncodingError(RequestError):
    """The gateway does not support the body's Content-Encoding, and the body is no JSON."""

    code = "unsupported_encoding"


class InvalidJSONError(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


class BatchMissingError(RequestError):
    """The body is JSON, but neither an event nor a batch of events."""

    code = "batch_missing"


class IdempotencyKeyInvalidError(RequestError):
    """The Idempotency-Key header is empty or too long."""

    code = "idempotency_key_invalid"


class FingerprintsInvalidError(RequestError):
    """The Gateway-Fingerprints header does not have one fingerprint for each event."""

    code = "fingerprints_invalid"


class SessionFieldsInvalidError(RequestError):
    """A field of the client session is malformed, or client or session is missing."""

    code = "session_fields_invalid"


class SessionFieldsConflictError(RequestError):
    """Headers and body differ in a field of the client session."""

    code = "session_fields_conflict"


class SessionUnknownError(RequestError):
    """No event of the client session is stored, or it is too old."""

    code = "session_unknown"


class WriteKeyMissingError(RequestError):
    """The request has no write key in any of its places."""

    code = "write_key_missing"


class InvalidWriteKeyError(RequestError):
    """The write key is unknown."""

    code = "invalid_write_key"
    keys: int = 1
    """The unknown keys of the request."""


class DisabledWriteKeyError(InvalidWriteKeyError):
    """The source of the write key is disabled."""


class ScopeMissingError(RequestError):
    """The write key lacks the scope that the request needs."""

    code = "scope_missing"


class BodyTimeoutError(RetriableError):
    """The body did not arrive within its deadline. Nothing was accepted."""

    code = "body_timeout"


class BodyTruncatedError(RetriableError):
    """The connection, or the compressed data, ended before the body. What arrived may have been accepted."""

    code = "body_truncated"


class BodyMemoryFullError(RetriableError):
    """The bodies of other requests use all the memory for bodies. Nothing was accepted."""

    code = "memory_full"


class TooManyConnectionsError(RetriableError):
    """There are too many connections, in total or of this address. Nothing was accepted."""

    code = "too_many_connections"


_QUOTAS = {
    "requests": "requests a second",
    "events": "events a second",
    "bytes": "bytes a second",
    "index": "new events within the window",
    "quarantine": "bytes of rejected and conflicting events a second",
}


class QuotaExceededError(RetriableError):
    """The write key has used up one of its limits. Nothing was accepted."""

    code = "quota_exceeded"

    def __init__(self, limit: str, wait_s: float = 0.0) -> None:
        """`limit`: the name of the limit; `wait_s`: the time after which the request passes."""
        super().__init__(limit, detail=_QUOTAS.get(limit, ""))
        self.limit = limit
        self.wait_s = wait_s
