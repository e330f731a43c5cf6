"""
The OpenAPI document of the ingest port, generated from the tables of paths and problems.

It describes when a request succeeds or fails as a whole; tests check it with a tool.
"""

from collections.abc import Sequence

from app.ingest.openapi_components import (
    SESSION,
    Schema,
    headers,
    json_answer,
    parameters,
    problem_of,
    ref,
    schemas_of_all,
)
from app.ingest.routes.paths import Kind, Path
from app.settings.version import VERSION

INGEST_STATUSES = (400, 401, 403, 429, 503)

UNKNOWN = 404
"""The status of an unknown client session."""

_SUMMARIES = {
    Kind.EVENTS: "Send one event, an array of events or a batch, and get a receipt for each",
    Kind.BATCH: "Send a batch of events",
    Kind.SINGLE: "Send one event",
    Kind.CLOUDEVENTS: "Send a CloudEvent or an array of them, and get a receipt for each",
    Kind.SESSIONS: "Get the id of a new client session",
    Kind.SESSION: "Get the state of a client session",
    Kind.PIXEL: "Send one event in the query and get an image",
    Kind.TELEMETRY: "Send metrics of an SDK itself; they are discarded",
    Kind.SEGMENT_SETTINGS: "Get the settings document of Segment's SDKs",
    Kind.RUDDERSTACK_SETTINGS: "Get the settings document of RudderStack's SDKs",
    Kind.OPENAPI: "Get this document",
}

_EVENTS = (Kind.EVENTS, Kind.BATCH, Kind.SINGLE, Kind.CLOUDEVENTS)
_BODIES = {
    Kind.EVENTS: "Events",
    Kind.BATCH: "BatchOrEvents",
    Kind.SINGLE: "EventOrArray",
    Kind.CLOUDEVENTS: "CloudEvents",
    Kind.SESSIONS: "Client",
}

JSON = "application/json"
_MEDIA_TYPES = {Kind.CLOUDEVENTS: "application/cloudevents+json"}

_FAILURES = {
    **dict.fromkeys((*_EVENTS, Kind.SESSIONS), INGEST_STATUSES),
    Kind.SESSION: (*INGEST_STATUSES, UNKNOWN),
    Kind.RUDDERSTACK_SETTINGS: (400, 401),
}

_WRITE_KEYS: list[Schema] = [{"basic": []}, {"header": []}, {"query": []}, {}]
"""Optional, since the body may have it; a request without any is answered with 400, not 401."""

_INFO = """\
Write keys: the first of these decides: the user name of Basic authorization, X-Write-Key up to its
first colon, writeKey in the query, writeKey at the body's top level, writeKey of the first event.
The Content-Type is ignored. Bodies may be compressed by gzip or deflate; their first bytes tell, whatever
Content-Encoding says. Every answer carries CORS headers.
After a 429 or 503 send the same request again, not before Retry-After seconds.

CloudEvents: as JSON, one or an array of them, or in binary mode with headers ce-id, ce-source, ce-type and
ce-specversion and the data as body. Their write key may also be a Bearer token, or access_token in the query.
OPTIONS with WebHook-Request-Origin is answered as the specification of their webhooks says.

Client sessions: Gateway-Client and Gateway-Session are required together, and so are client and session in
the body. Fields in both places must be equal."""


def openapi_document(paths: Sequence[Path], *, request_events_max: int) -> Schema:
    """Return the document; every path of the table is in it."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Idempotent ingestion gateway", "version": VERSION, "description": _INFO},
        "paths": {path.template: {path.methods[0].lower(): _operation(path)} for path in paths},
        "components": {
            "schemas": schemas_of_all(request_events_max),
            "parameters": parameters(),
            "headers": headers(),
            "responses": {str(status): problem_of(status) for status in (*INGEST_STATUSES, UNKNOWN)},
            "securitySchemes": {
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "user name: the write key; password: empty",
                },
                "header": {"type": "apiKey", "in": "header", "name": "X-Write-Key"},
                "query": {"type": "apiKey", "in": "query", "name": "writeKey"},
            },
        },
    }


def _operation(path: Path) -> Schema:
    operation: Schema = {
        "operationId": _operation_id(path),
        "summary": _SUMMARIES[path.kind],
        "description": f"Used by {path.who}.",
        "tags": [path.kind.value],
        "parameters": _parameters_of(path),
        "responses": _responses_of(path),
    }
    if path.kind in _BODIES:
        operation["requestBody"] = {
            "required": True,
            "content": {_MEDIA_TYPES.get(path.kind, JSON): {"schema": ref("schemas", _BODIES[path.kind])}},
        }
    if path.kind in _BODIES or path.kind in (Kind.SESSION, Kind.RUDDERSTACK_SETTINGS):
        operation["security"] = _WRITE_KEYS
    return operation


def _operation_id(path: Path) -> str:
    name = "".join(letter if letter.isalnum() else "_" for letter in path.template)
    return path.methods[0].lower() + name.rstrip("_")


def _parameters_of(path: Path) -> list[Schema]:
    names = [part[1:-1] for part in path.template.split("/") if part.startswith("{")]
    own = [_path_parameter(name) for name in names]
    if path.kind in _BODIES:
        own.append(ref("parameters", "IdempotencyKey"))
    if path.kind in _EVENTS:
        own.append(ref("parameters", "Prefer"))
    if path.kind is Kind.EVENTS:
        fields = ("Client", "Session", "Epoch", "AcknowledgedThrough", "Ended")
        own += [ref("parameters", field) for field in fields]
    if path.kind is Kind.SESSION:
        own.append({**parameters()["Client"], "required": True})
    if path.kind is Kind.PIXEL:
        own += [ref("parameters", "Data"), ref("parameters", "Fields")]
    return own


def _path_parameter(name: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[^/]+$"},
        "example": {"type": "track", "session": SESSION["example"]}.get(name, "my-write-key"),
    }


def _responses_of(path: Path) -> Schema:
    failures = {str(status): ref("responses", str(status)) for status in _FAILURES.get(path.kind, ())}
    return {"200": _success_of(path.kind), **failures}


def _success_of(kind: Kind) -> Schema:
    match kind:
        case Kind.EVENTS | Kind.BATCH | Kind.SINGLE | Kind.CLOUDEVENTS:
            return _verdicts(in_session=kind is Kind.EVENTS)
        case Kind.SESSIONS:
            return json_answer("its id", ref("schemas", "NewSession"))
        case Kind.SESSION:
            return json_answer("its state", ref("schemas", "Session"))
        case Kind.PIXEL:
            return {"description": "a transparent image, always", "content": {"image/gif": {}}}
        case Kind.TELEMETRY:
            return json_answer("discarded", ref("schemas", "Success"))
        case _:
            return json_answer("the document", {"type": "object"})


def _verdicts(*, in_session: bool) -> Schema:
    counts = ["Gateway-Accepted", "Gateway-Duplicates", "Gateway-Rejected"]
    names = [*counts, "Idempotent-Replayed", "Preference-Applied"]
    if in_session:
        names += ["Gateway-Source", "Gateway-Session-Watermark", "Gateway-Session-Missing"]
    return {
        **json_answer("every event has its verdict", ref("schemas", "Answer")),
        "headers": {name: ref("headers", name) for name in names},
    }
