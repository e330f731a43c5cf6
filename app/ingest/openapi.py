"""
The OpenAPI document of the ingest port, made from the table of paths and the table of problems.

It states what makes a request succeed or fail as a whole, so a tool that tests by it finds it true.
What is asked of a single event stands in descriptions: an event that breaks it is kept apart, and
its request succeeds.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from app.config import VERSION
from app.http import PROBLEMS
from app.ingest.receipts import REASONS
from app.ingest.routes.paths import Kind, Path

Schema: TypeAlias = dict[str, Any]

INGEST_STATUSES = (400, 401, 403, 429, 503)

_SUMMARIES = {
    Kind.EVENTS: "Send one event, an array of events or a batch, and get a receipt for each",
    Kind.BATCH: "Send a batch of events",
    Kind.SINGLE: "Send one event",
    Kind.SESSIONS: "Get the id of a new client session",
    Kind.SESSION: "Get what is known of a client session",
    Kind.PIXEL: "Send one event in the query and get an image",
    Kind.TELEMETRY: "Send what SDKs tell about themselves; it is discarded",
    Kind.SEGMENT_SETTINGS: "Get the settings document of Segment's SDKs",
    Kind.RUDDERSTACK_SETTINGS: "Get the settings document of RudderStack's SDKs",
    Kind.OPENAPI: "Get this document",
}

_BODIES = {Kind.EVENTS: "Events", Kind.BATCH: "Batch", Kind.SINGLE: "Event"}

_WRITE_KEYS: list[Schema] = [{"basic": []}, {"header": []}, {"query": []}, {}]
"""Optional, since it may stand in the body as well, and a request without any gets 400, not 401."""

_INFO = """\
Write keys: the first one found decides: the user name of Basic authorization, X-Write-Key up to its
first colon, writeKey in the query, writeKey at the body's top level, writeKey of the first event.
The Content-Type is ignored; Content-Encoding gzip and deflate are understood. Every answer carries
CORS headers. After a 429 or 503 send the same request again, not before Retry-After seconds."""


def openapi_document(paths: Sequence[Path], *, request_events_max: int) -> Schema:
    """Return the document; every path of the table is in it."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Idempotent ingestion gateway", "version": VERSION, "description": _INFO},
        "paths": {path.template: {path.methods[0].lower(): _operation(path)} for path in paths},
        "components": {
            "schemas": _schemas(request_events_max),
            "parameters": _parameters(),
            "headers": _headers(),
            "responses": {str(status): _problem(status) for status in INGEST_STATUSES},
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
            "content": {"application/json": {"schema": _ref("schemas", _BODIES[path.kind])}},
        }
    if path.kind in _BODIES or path.kind is Kind.RUDDERSTACK_SETTINGS:
        operation["security"] = _WRITE_KEYS
    return operation


def _operation_id(path: Path) -> str:
    name = "".join(letter if letter.isalnum() else "_" for letter in path.template)
    return path.methods[0].lower() + name.rstrip("_")


def _parameters_of(path: Path) -> list[Schema]:
    names = [part[1:-1] for part in path.template.split("/") if part.startswith("{")]
    found = [_path_parameter(name) for name in names]
    if path.kind in _BODIES:
        found += [_ref("parameters", "IdempotencyKey"), _ref("parameters", "Prefer")]
    if path.kind is Kind.PIXEL:
        found += [_ref("parameters", "Data"), _ref("parameters", "Fields")]
    return found


def _path_parameter(name: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[^/]+$"},
        "example": "track" if name == "type" else "my-write-key",
    }


def _responses_of(path: Path) -> Schema:
    match path.kind:
        case Kind.EVENTS | Kind.BATCH | Kind.SINGLE:
            failures = {str(status): _ref("responses", str(status)) for status in INGEST_STATUSES}
            return {"200": _success(), **failures}
        case Kind.PIXEL:
            return {"200": {"description": "a transparent image, always", "content": {"image/gif": {}}}}
        case Kind.TELEMETRY:
            return {"200": _json_answer("discarded", _ref("schemas", "Success"))}
        case Kind.RUDDERSTACK_SETTINGS:
            failures = {str(status): _ref("responses", str(status)) for status in (400, 401)}
            return {"200": _json_answer("the document", {"type": "object"}), **failures}
        case _:
            return {"200": _json_answer("the document", {"type": "object"})}


def _success() -> Schema:
    names = ("Gateway-Accepted", "Gateway-Duplicates", "Idempotent-Replayed", "Preference-Applied")
    return {
        **_json_answer("every event has its verdict", _ref("schemas", "Answer")),
        "headers": {name: _ref("headers", name) for name in names},
    }


def _problem(status: int) -> Schema:
    codes = [code for code, problem in PROBLEMS.items() if problem.status == status]
    answer = _json_answer(
        HTTPStatus(status).phrase,
        {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"enum": codes}, "message": {"type": "string"}},
            "additionalProperties": False,
        },
    )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        answer["headers"] = {"Retry-After": _ref("headers", "Retry-After")}
    return answer


def _schemas(request_events_max: int) -> Schema:
    return {**_schemas_of_requests(request_events_max), **_schemas_of_answers()}


def _schemas_of_requests(request_events_max: int) -> Schema:
    items = {
        "type": "array",
        "maxItems": request_events_max,
        "items": {"anyOf": [_ref("schemas", "Event"), {}]},
        "description": "events; an item that is none is rejected, the others are taken",
    }
    batch = {
        "type": "object",
        "required": ["batch"],
        "properties": {
            "batch": items,
            "context": {"description": "an object, merged into each event's"},
            "integrations": {"description": "an object, merged into each event's"},
            "sentAt": {"description": "text; of each event that has none"},
        },
    }
    return {
        "Event": {
            "type": "object",
            "properties": {
                "messageId": {"description": "text of 1 to 255 bytes; assigned if absent or null"},
                "type": {"description": "text of at most 100 characters; by the path if absent or null"},
                "event": {"description": "the event's name"},
                "userId": {"description": "who did it"},
                "anonymousId": {"description": "who did it, before anybody knows"},
                "timestamp": {"description": "when it happened, as ISO 8601; never corrected"},
                "properties": {"description": "an object of whatever belongs to the event"},
                "context": {"description": "an object of what surrounds the event"},
            },
            "example": {"messageId": "a1", "type": "track", "event": "Seen", "userId": "u1"},
        },
        "Batch": batch,
        "Events": {"anyOf": [_ref("schemas", "Batch"), _ref("schemas", "Event"), items]},
    }


def _schemas_of_answers() -> Schema:
    return {
        "Success": {
            "type": "object",
            "required": ["success"],
            "properties": {"success": {"const": True}},
            "additionalProperties": False,
        },
        "Answer": {
            "type": "object",
            "required": ["success"],
            "properties": {
                "success": {"const": True},
                "receipts": {"type": "array", "items": _ref("schemas", "Receipt")},
                "rejected": {"type": "array", "minItems": 1, "items": _ref("schemas", "Rejected")},
                "warnings": {"type": "array", "minItems": 1, "items": _ref("schemas", "Warning")},
            },
            "additionalProperties": False,
        },
        "Receipt": {
            "type": "object",
            "required": ["messageId", "partition", "offset"],
            "properties": {
                "messageId": {"type": "string"},
                "partition": {"type": "integer", "minimum": 0},
                "offset": {"type": "integer", "minimum": 0},
                "idempotent": {"const": False, "description": "a retry would be stored again"},
            },
            "additionalProperties": False,
        },
        "Warning": {
            "type": "object",
            "description": "in development only: an event that is stored, but surely meant otherwise",
            "required": ["index", "message"],
            "properties": {"index": {"type": "integer", "minimum": 0}, "message": {"type": "string"}},
            "additionalProperties": False,
        },
        "Rejected": {
            "type": "object",
            "required": ["index", "messageId", "code", "message"],
            "properties": {
                "index": {"type": "integer", "minimum": 0},
                "messageId": {"type": ["string", "null"]},
                "code": {"enum": list(REASONS)},
                "message": {"type": "string"},
            },
            "additionalProperties": False,
        },
    }


def _parameters() -> Schema:
    return {
        "IdempotencyKey": {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            "description": "gives events without messageId the same ids whenever the request is repeated",
        },
        "Prefer": {
            "name": "Prefer",
            "in": "header",
            "schema": {"type": "string"},
            "description": "return=representation asks for receipts, return=minimal for none",
        },
        "Data": {
            "name": "data",
            "in": "query",
            "schema": {"type": "string"},
            "description": "the event as base64 of its JSON, in either alphabet",
        },
        "Fields": {
            "name": "fields",
            "in": "query",
            "style": "form",
            "explode": True,
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            "description": "without data: the event's fields by name, such as properties.plan=pro",
        },
    }


def _headers() -> Schema:
    count: Schema = {"type": "integer", "minimum": 0}
    return {
        "Gateway-Accepted": {"schema": count, "description": "events that were new", "required": True},
        "Gateway-Duplicates": {"schema": count, "description": "events that were known", "required": True},
        "Idempotent-Replayed": {"schema": {"const": "true"}, "description": "nothing was new"},
        "Preference-Applied": {"schema": {"enum": ["return=representation", "return=minimal"]}},
        "Retry-After": {"schema": {"type": "integer", "minimum": 1, "maximum": 300}, "required": True},
    }


def _json_answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(section: str, name: str) -> Schema:
    return {"$ref": f"#/components/{section}/{name}"}
