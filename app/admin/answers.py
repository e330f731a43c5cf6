"""Answers of the admin port: JSON documents, and problem documents (RFC 9457)."""

from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response

from app.http.problems import Problem
from dedupe.model.errors import GatewayError

PROBLEM_TYPE = "application/problem+json"


class HostNotAllowedError(GatewayError):
    """The Host header of a request does not name the admin port."""

    code = "host_not_allowed"


class OriginNotAllowedError(GatewayError):
    """A page of another origin sent a request that changes something."""

    code = "origin_not_allowed"


class TokenInvalidError(GatewayError):
    """The request has no token, or an unknown one."""

    code = "admin_token_invalid"


class TokenScopeError(GatewayError):
    """The token only allows reading."""

    code = "admin_scope_missing"


class AloneError(GatewayError):
    """The request needs a group of workers, but this gateway is in none."""

    code = "alone"


class NotFoundError(GatewayError):
    """There is no such resource."""

    code = "not_found"


class BusyError(GatewayError):
    """A request of this kind is running, and only one may."""

    code = "busy"


_UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE.value

ADMIN_PROBLEMS: dict[str, Problem] = {
    "bad_request": Problem(HTTPStatus.BAD_REQUEST, "the request is not valid"),
    "head_too_large": Problem(HTTPStatus.BAD_REQUEST, "the request line and headers are larger than allowed"),
    "body_too_large": Problem(HTTPStatus.BAD_REQUEST, "the body is larger than allowed"),
    "invalid_json": Problem(HTTPStatus.BAD_REQUEST, "the body is not JSON"),
    "admin_token_invalid": Problem(HTTPStatus.UNAUTHORIZED, "Authorization must be Bearer and a token"),
    "admin_scope_missing": Problem(
        HTTPStatus.FORBIDDEN,
        "this token may only read: changes, and whole events, need the one of GATEWAY_ADMIN_TOKEN",
    ),
    "host_not_allowed": Problem(
        HTTPStatus.FORBIDDEN, "the Host header does not name the admin port; GATEWAY_ADMIN_HOSTS adds names"
    ),
    "origin_not_allowed": Problem(HTTPStatus.FORBIDDEN, "pages of other origins cannot change anything"),
    "not_found": Problem(HTTPStatus.NOT_FOUND, "there is nothing at this path"),
    "method_not_allowed": Problem(HTTPStatus.METHOD_NOT_ALLOWED, "this path does not support this method"),
    "alone": Problem(HTTPStatus.CONFLICT, "this gateway is in no group of workers, see GATEWAY_PEER_LISTEN"),
    "seek_refused": Problem(HTTPStatus.CONFLICT, "the input is not read on from there"),
    "busy": Problem(HTTPStatus.CONFLICT, "another request of this kind is running; wait for its end"),
    "unavailable": Problem(_UNAVAILABLE, "not possible now; try again"),
    "lane_not_active": Problem(_UNAVAILABLE, "the partition does not serve now; try again"),
    "index_unavailable": Problem(_UNAVAILABLE, "the dedupe index cannot be used now; try again"),
    "outcome_unknown": Problem(_UNAVAILABLE, "the log did not answer: the outcome is unknown"),
    "not_appended": Problem(_UNAVAILABLE, "the log did not accept the event; try again"),
    "fenced": Problem(_UNAVAILABLE, "another worker owns the partition now; try again"),
    "deadline_exceeded": Problem(_UNAVAILABLE, "no answer in time; try again"),
    "overloaded": Problem(_UNAVAILABLE, "the partition's queue is full; try again"),
    "disk_full": Problem(_UNAVAILABLE, "too little free disk space; try again"),
    "body_timeout": Problem(_UNAVAILABLE, "the body did not arrive in time; try again"),
    "body_truncated": Problem(_UNAVAILABLE, "the body ended early; try again"),
    "memory_full": Problem(_UNAVAILABLE, "too many large requests at once; try again"),
    "too_many_connections": Problem(_UNAVAILABLE, "too many connections; try again"),
    "index_corrupt": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the index is damaged"),
    "index_disproved": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the log has disproved the index"),
    "log_corrupt": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the log has a record that no gateway wrote"),
    "identity_mismatch": Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "the log has a record of another secret or partition count"
    ),
    "internal": Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error, see the gateway's log"),
}
"""The problems of the admin port by code."""


def json_answer(document: Any, *, status: int = 200) -> Response:
    """Return a document as JSON."""
    return Response(orjson.dumps(document), status, media_type="application/json")


def problem_document(code: str, status: int, message: str) -> tuple[bytes, str]:
    """Return the body of a problem document, and its media type."""
    document = {
        "type": f"urn:gateway:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": code,
    }
    return orjson.dumps(document), PROBLEM_TYPE
