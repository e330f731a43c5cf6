"""
Problems: the table from error codes to HTTP answers.

An error's body is a JSON object with `code` and `message`: some SDKs retry a 400 whose body lacks either.
Size limits are 400, too, the only status after which nearly all SDKs stop retrying; RudderStack's mobile SDKs
get 413, since older ones repeat a 400 every second for ever, and newer ones give up at either. The texts are
constant, without parts of requests, topics or exceptions.
"""

import math
import random
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

import orjson
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from app.http.errors import BodyTimeoutError, BodyTooLargeError, QuotaExceededError, TooManyConnectionsError
from app.http.refusal_log import RefusalLog, Watch
from app.http.request_context import CONTEXT, RequestContext
from dedupe.model.errors import GatewayError


class Problem(NamedTuple):
    """The answer of one error code."""

    status: int
    message: str


QUOTA_WAIT_MAX_S = 240
"""With a quarter of jitter at most 300 s, the longest `Retry-After` that SDKs obey."""

ANONYMOUS_ID = b"anonymousid"
"""A header that only RudderStack's mobile SDKs send."""

BAD_REQUEST, UNAVAILABLE = HTTPStatus.BAD_REQUEST.value, HTTPStatus.SERVICE_UNAVAILABLE.value

PROBLEMS: dict[str, Problem] = {
    "bad_request": Problem(BAD_REQUEST, "the request is not valid"),
    "head_too_large": Problem(BAD_REQUEST, "the request line and headers are larger than allowed"),
    "body_too_large": Problem(BAD_REQUEST, "the body is larger than allowed"),
    "body_not_decompressable": Problem(BAD_REQUEST, "the body is not gzip or deflate"),
    "unsupported_encoding": Problem(BAD_REQUEST, "the Content-Encoding must be gzip, deflate or absent"),
    "invalid_json": Problem(BAD_REQUEST, "the body is not JSON"),
    "batch_missing": Problem(BAD_REQUEST, "the body is neither an event nor a batch of events"),
    "idempotency_key_invalid": Problem(BAD_REQUEST, "Idempotency-Key must have 1 to 255 bytes"),
    "fingerprints_invalid": Problem(
        BAD_REQUEST, "Gateway-Fingerprints must have 16 hex digits for each event, separated by commas"
    ),
    "session_fields_invalid": Problem(BAD_REQUEST, "a field of the client session is malformed or missing"),
    "session_fields_conflict": Problem(
        BAD_REQUEST, "headers and body differ in a field of the client session"
    ),
    "session_unknown": Problem(
        HTTPStatus.NOT_FOUND, "no event of this client session is stored, or it is too old"
    ),
    "write_key_missing": Problem(
        BAD_REQUEST,
        "the request has no write key: it may be the user name of Basic authorization, X-Write-Key, or "
        "writeKey in the query, at the body's top level or in the events",
    ),
    "invalid_write_key": Problem(HTTPStatus.UNAUTHORIZED, "the write key is unknown or disabled"),
    "scope_missing": Problem(
        HTTPStatus.FORBIDDEN,
        "the write key may not do this: Gateway-Fingerprints and Gateway-Sessions need a key whose scopes "
        "include replay, other requests a key whose scopes include ingest",
    ),
    "not_found": Problem(HTTPStatus.NOT_FOUND, "the path does not exist"),
    "method_not_allowed": Problem(HTTPStatus.METHOD_NOT_ALLOWED, "the path does not have this method"),
    "quota_exceeded": Problem(HTTPStatus.TOO_MANY_REQUESTS, "the write key has used up its quota"),
    "overloaded": Problem(HTTPStatus.TOO_MANY_REQUESTS, "too many events are waiting; nothing was accepted"),
    "unavailable": Problem(UNAVAILABLE, "try again; retries with the same ids are harmless"),
    "lane_not_active": Problem(UNAVAILABLE, "a partition is not served now; try again"),
    "disk_full": Problem(UNAVAILABLE, "the gateway has too little free disk space; try again"),
    "deadline_exceeded": Problem(UNAVAILABLE, "no verdict in time; retry with the same ids to learn it"),
    "not_appended": Problem(UNAVAILABLE, "the log did not accept the events; try again"),
    "outcome_unknown": Problem(UNAVAILABLE, "the outcome is unknown; retry with the same ids to learn it"),
    "fenced": Problem(UNAVAILABLE, "another gateway owns the partition now; try again"),
    "index_unavailable": Problem(UNAVAILABLE, "the dedupe index cannot be used now; try again"),
    "body_timeout": Problem(UNAVAILABLE, "the body did not arrive in time; try again"),
    "body_truncated": Problem(UNAVAILABLE, "the body ended early; try again"),
    "memory_full": Problem(UNAVAILABLE, "too many large requests at once; try again"),
    "too_many_connections": Problem(UNAVAILABLE, "too many connections; try again"),
    "internal": Problem(UNAVAILABLE, "internal error; retries with the same ids are harmless"),
}

_CODES_BY_STATUS = {
    HTTPStatus.NOT_FOUND.value: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED.value: "method_not_allowed",
}

Form: TypeAlias = Callable[[str, int, str], tuple[bytes, str]]
"""Returns the body of an error from code, status and message, and its media type."""

RETRY_AFTER_MAX_S = 30
"""The largest Retry-After, except that of a quota: the queues of waiting SDKs fill."""

logger = structlog.get_logger(__name__)


def plain_form(code: str, _status: int, message: str) -> tuple[bytes, str]:
    """Return the body that SDKs understand."""
    return orjson.dumps({"code": code, "message": message}), "application/json"


class Problems:
    """Turns errors into answers."""

    def __init__(
        self,
        *,
        retry_after_max: int,
        rng: random.Random,
        figures: Mapping[str, str] | None = None,
        refusals: RefusalLog | None = None,
        table: Mapping[str, Problem] = PROBLEMS,
        form: Form = plain_form,
    ) -> None:
        """
        Set how errors are answered.

        Args:
            retry_after_max: the largest Retry-After in seconds.
            rng: its jitter.
            figures: by code, the limit that a client has exceeded, for errors without a detail.
            refusals: the log of refusals.
            table: the answers by code.
            form: returns the bodies.
        """
        self._retry_after_max = retry_after_max
        self._rng = rng
        self._figures = figures or {}
        self._refusals = refusals or RefusalLog()
        self._table = table
        self._form = form

    def watch(self, watch: Watch) -> None:
        """Call `watch` at each refusal."""
        self._refusals.watch = watch

    def answer(self, err: GatewayError, scope: Scope | None = None) -> Response:
        """Answer an expected error; `scope` is that of its request."""
        if err.code not in self._table:
            return self.unforeseen(err, scope)
        headers = {}
        if isinstance(err, BodyTimeoutError | TooManyConnectionsError):
            headers["Connection"] = "close"
        if isinstance(err, QuotaExceededError):
            headers["Retry-After"] = str(self._after_quota(err.wait_s))
        response = self._response(err.code, headers, self._detail_of(err))
        if isinstance(err, BodyTooLargeError) and _has_header(scope, ANONYMOUS_ID):
            response.status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE.value
        self._refusals.note(err.code, response.status_code, detail=self._detail_of(err), scope=scope)
        return response

    def note(self, err: GatewayError, scope: Scope | None) -> None:
        """Log an expected error that has no answer of its own; `scope` is that of its request."""
        status = self._table[err.code].status if err.code in self._table else UNAVAILABLE
        self._refusals.note(err.code, status, detail=self._detail_of(err), scope=scope)

    def note_damage(self, err: GatewayError, status: int, scope: Scope) -> None:
        """Log and count what was wrong with a body, of which the rest was read and answered with `status`."""
        self._refusals.note(err.code, status, detail=self._detail_of(err), scope=scope, is_refusal=False)

    def http(self, err: HTTPException, scope: Scope | None = None) -> Response:
        """Answer an error of the framework, such as an unknown path."""
        code = _CODES_BY_STATUS.get(err.status_code, "bad_request")
        self._refusals.note(code, self._table[code].status, detail="", scope=scope)
        return self._response(code, err.headers or {})

    def unforeseen(self, err: BaseException, scope: Scope | None) -> Response:
        """Answer an unexpected error, and log it with the id of its request."""
        context: RequestContext | None = scope.get(CONTEXT) if scope else None
        logger.error("unforeseen error", request_id=context.request_id if context else None, exc_info=err)
        self._refusals.count("internal", UNAVAILABLE, scope)
        return self._response("internal", {})

    def _detail_of(self, err: GatewayError) -> str:
        return err.detail or self._figures.get(err.code, "")

    def _after_quota(self, wait_s: float) -> int:
        """Return the Retry-After of a quota, with up to a quarter of jitter."""
        seconds = max(1, math.ceil(min(wait_s, QUOTA_WAIT_MAX_S)))
        return seconds + self._rng.randint(0, max(1, seconds // 4))

    def _response(self, code: str, headers: Mapping[str, str], detail: str = "") -> Response:
        problem = self._table[code]
        message = f"{problem.message} ({detail})" if detail else problem.message
        body, media_type = self._form(code, problem.status, message)
        response = Response(body, problem.status, headers, media_type=media_type)
        if problem.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            response.headers.setdefault("Retry-After", str(self._rng.randint(1, self._retry_after_max)))
        return response


def _has_header(scope: Scope | None, name: bytes) -> bool:
    context: RequestContext | None = scope.get(CONTEXT) if scope else None
    return context is not None and name in context.headers
