"""
What the edge refuses by itself, under the core's GatewayError.

    RequestError                       the client's fault; the same request is refused again
      HeadTooLargeError                more header bytes or fields than allowed
      BodyTooLargeError                more bytes than allowed, on the wire or inflated
      BodyNotDecompressableError       not what its Content-Encoding says, or cut short
      UnsupportedEncodingError         a Content-Encoding that is not understood
      BodyTooComplexError              more commas, colons and opening brackets than allowed
      InvalidJSONError                 the body is not JSON
      BatchMissingError                JSON, but no event and no batch of events in it
      TooManyEventsError               more events than one request may carry
      RequestTooLargeError             its events with batch-level fields merged in exceed the limit
      IdempotencyKeyInvalidError       Idempotency-Key is empty or too long
      FingerprintsInvalidError         Gateway-Fingerprints does not hold one for each event
      SessionFieldsInvalidError        what it says of its client session is malformed, or not all of it
      SessionFieldsConflictError       its headers and its body say different things of it
      SessionUnknownError              nothing is known of the client session that is asked for
      WriteKeyMissingError             no write key anywhere
      InvalidWriteKeyError             a write key that is unknown
        DisabledWriteKeyError          a write key whose source is switched off; same code
      ScopeMissingError                a write key that may not do what the request asks for
    RetriableError (of the core)       nothing was taken; the same request may succeed later
      BodyTimeoutError                 the body did not arrive in time
      BodyIncompleteError              the client ended its side in the middle of the body
      BodyMemoryFullError              the bodies of other requests take all the memory there is
      TooManyConnectionsError          too many connections, in all or of one address
      QuotaExceededError               the write key has used up its quota

app.http.problems has the status and the text of each code.
"""

from dedupe.errors import GatewayError, RetriableError


class RequestError(GatewayError):
    """The request itself is wrong: no retry of it can succeed, and nothing was taken."""

    code = "bad_request"


class HeadTooLargeError(RequestError):
    """The request line and headers have more bytes, or more fields, than allowed."""

    code = "head_too_large"


class BodyTooLargeError(RequestError):
    """The body has more bytes than allowed, on the wire or inflated."""

    code = "body_too_large"


class BodyNotDecompressableError(RequestError):
    """The body is not what its Content-Encoding says, or it is cut short."""

    code = "body_not_decompressable"


class UnsupportedEncodingError(RequestError):
    """The body has a Content-Encoding that the gateway does not understand."""

    code = "unsupported_encoding"


class BodyTooComplexError(RequestError):
    """The body, or one event in it, has more commas, colons and opening brackets than allowed."""

    code = "body_too_complex"


class InvalidJSONError(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


class BatchMissingError(RequestError):
    """The body is JSON, but holds neither an event nor a batch of events."""

    code = "batch_missing"


class TooManyEventsError(RequestError):
    """The request carries more events than allowed."""

    code = "too_many_events"


class RequestTooLargeError(RequestError):
    """The request's events, with batch-level fields merged into each, exceed the limit."""

    code = "request_too_large"


class IdempotencyKeyInvalidError(RequestError):
    """The Idempotency-Key header is empty or too long."""

    code = "idempotency_key_invalid"


class FingerprintsInvalidError(RequestError):
    """The Gateway-Fingerprints header does not hold one fingerprint for each event."""

    code = "fingerprints_invalid"


class SessionFieldsInvalidError(RequestError):
    """What the request says of its client session is malformed, or not all of it."""

    code = "session_fields_invalid"


class SessionFieldsConflictError(RequestError):
    """Headers and body say different things of the client session."""

    code = "session_fields_conflict"


class SessionUnknownError(RequestError):
    """Nothing is known of the client session that is asked for."""

    code = "session_unknown"


class WriteKeyMissingError(RequestError):
    """No write key in any of the places where one is looked for."""

    code = "write_key_missing"


class InvalidWriteKeyError(RequestError):
    """There is a write key, but it does not count."""

    code = "invalid_write_key"


class DisabledWriteKeyError(InvalidWriteKeyError):
    """There is a known write key, but it is switched off."""


class ScopeMissingError(RequestError):
    """The write key counts, but has not the scope that the request needs."""

    code = "scope_missing"


class BodyTimeoutError(RetriableError):
    """The body did not arrive within its deadline. Nothing was taken."""

    code = "body_timeout"


class BodyIncompleteError(RetriableError):
    """The client ended its side in the middle of the body. Nothing was taken."""

    code = "body_incomplete"


class BodyMemoryFullError(RetriableError):
    """The bodies of other requests take all the memory there is for bodies. Nothing was taken."""

    code = "memory_full"


class TooManyConnectionsError(RetriableError):
    """The connection is one too many, in all or of its address. Nothing was taken."""

    code = "too_many_connections"


_QUOTAS = {
    "requests": "requests a second",
    "events": "events a second",
    "bytes": "bytes a second",
    "index": "new events within the window",
}


class QuotaExceededError(RetriableError):
    """The write key has used up one of its limits. Nothing was taken."""

    code = "quota_exceeded"

    def __init__(self, limit: str, wait_s: float = 0.0) -> None:
        """Take which limit it is, and how long the same request would have to wait."""
        super().__init__(limit, told=_QUOTAS.get(limit, ""))
        self.limit = limit
        self.wait_s = wait_s
