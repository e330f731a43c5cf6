"""Answers of the admin port: JSON documents, and problem documents (RFC 9457) for what it refuses."""

from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response

from app.http.problems import Problem
from dedupe.model.errors import GatewayError

PROBLEM_TYPE = "application/problem+json"


class HostNotAllowedError(GatewayError):
    """The Host of a request is no name of the admin port."""

    code = "host_not_allowed"


class OriginNotAllowedError(GatewayError):
    """A page of another origin made a request that changes something."""

    code = "origin_not_allowed"


class TokenInvalidError(GatewayError):
    """No token was shown, or an unknown one."""

    code = "admin_token_invalid"


class TokenScopeError(GatewayError):
    """The token may only read."""

    code = "admin_scope_missing"


class AloneError(GatewayError):
    """The request needs a group of workers, and this gateway is alone."""

    code = "alone"


class NotFoundError(GatewayError):
    """There is no such resource."""

    code = "not_found"


class BusyError(GatewayError):
    """Another one is running, and more at once would cost too much."""

    code = "busy"


_UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE.value

ADMIN_PROBLEMS: dict[str, Problem] = {
    "bad_request": Problem(HTTPStatus.BAD_REQUEST, "the request cannot be understood"),
    "head_too_large": Problem(HTTPStatus.BAD_REQUEST, "the request line and headers are larger than allowed"),
    "body_too_large": Problem(HTTPStatus.BAD_REQUEST, "the body is larger than allowed"),
    "invalid_json": Problem(HTTPStatus.BAD_REQUEST, "the body is not JSON"),
    "admin_token_invalid": Problem(HTTPStatus.UNAUTHORIZED, "Authorization must be Bearer and a token"),
    "admin_scope_missing": Problem(
        HTTPStatus.FORBIDDEN,
        "this token may only look: changes, and all of an event, need the one of GATEWAY_ADMIN_TOKEN",
    ),
    "host_not_allowed": Problem(
        HTTPStatus.FORBIDDEN, "the admin port is not known by this name; GATEWAY_ADMIN_HOSTS sets more"
    ),
    "origin_not_allowed": Problem(HTTPStatus.FORBIDDEN, "a page of another origin may change nothing"),
    "not_found": Problem(HTTPStatus.NOT_FOUND, "there is nothing at this path"),
    "method_not_allowed": Problem(HTTPStatus.METHOD_NOT_ALLOWED, "this path does not know this method"),
    "alone": Problem(
        HTTPStatus.CONFLICT, "this gateway is alone: GATEWAY_PEER_LISTEN makes it one of a group of workers"
    ),
    "busy": Problem(HTTPStatus.CONFLICT, "one at a time: wait for the other one to end"),
    "unavailable": Problem(_UNAVAILABLE, "it cannot be said or done now; try again"),
    "lane_not_active": Problem(_UNAVAILABLE, "the partition does not serve now; try again"),
    "index_unavailable": Problem(_UNAVAILABLE, "the dedupe index cannot be used now; try again"),
    "outcome_unknown": Problem(_UNAVAILABLE, "the log did not answer: it may be done or not"),
    "not_appended": Problem(_UNAVAILABLE, "the log did not take it; try again"),
    "fenced": Problem(_UNAVAILABLE, "another worker took over; try again"),
    "deadline_exceeded": Problem(_UNAVAILABLE, "no answer in time; try again"),
    "overloaded": Problem(_UNAVAILABLE, "too much is waiting; try again"),
    "disk_full": Problem(_UNAVAILABLE, "the gateway is short of disk space; try again"),
    "body_timeout": Problem(_UNAVAILABLE, "the body did not arrive in time; try again"),
    "body_incomplete": Problem(_UNAVAILABLE, "the body ended early; try again"),
    "memory_full": Problem(_UNAVAILABLE, "too many large requests at once; try again"),
    "too_many_connections": Problem(_UNAVAILABLE, "too many connections; try again"),
    "index_corrupt": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the index is damaged"),
    "log_corrupt": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the log has a record that no gateway wrote"),
    "identity_mismatch": Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "the log has a record of another secret or partition count"
    ),
    "internal": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error, which the gateway's log has"),
}
"""The admin port's own table: its errors are others than those of the ingest port."""


def json_answer(document: Any, *, status: int = 200) -> Response:
    """Return a document as JSON."""
    return Response(orjson.dumps(document), status, media_type="application/json")


def problem_document(code: str, status: int, message: str) -> tuple[bytes, str]:
    """Return the body of a refusal and its media type."""
    document = {
        "type": f"urn:gateway:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": code,
    }
    return orjson.dumps(document), PROBLEM_TYPE
