"""
What the OpenAPI document's operations refer to: schemas of requests and answers, headers, problems.

The rules of a single event stand in descriptions: an event that breaks one is quarantined, and
its request succeeds.
"""

from http import HTTPStatus
from typing import Any, TypeAlias

from app.http.problems import PROBLEMS
from app.ingest.items import EVENT_FIELDS
from app.ingest.prefer import Preferences, Return
from app.ingest.receipts import REASONS
from dedupe.decide.sessions import U64_MAX

Schema: TypeAlias = dict[str, Any]

CLIENT: Schema = {"type": "string", "pattern": "^[!-~]{1,100}$", "example": "phone-1"}
SESSION: Schema = {
    "type": "string",
    "pattern": "^([0-9A-Z][0-9A-Za-z]{26}|a[0-9A-V][0-9A-Za-z]{25})$",
    "description": "a KSUID",
    "example": "2dlpu8idjvw2es2uvixfliYNu0q",
}
_U64: Schema = {"type": "integer", "minimum": 0, "maximum": U64_MAX}


def schemas_of_all(request_events_max: int) -> Schema:
    """Return every schema; of a request the first `request_events_max` events are decided."""
    return {**_schemas_of_requests(request_events_max), **_schemas_of_answers()}


def _schemas_of_requests(request_events_max: int) -> Schema:
    items: Schema = {
        "type": "array",
        "items": {"anyOf": [ref("schemas", "Event"), {}]},
        "description": "events; an item that is none is rejected, as are those beyond the first "
        f"{request_events_max:,}; the others are accepted",
    }
    batch: Schema = {
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
                "messageId": {"description": "text of 1 to 255 bytes, an integer, or null: assigned"},
                "type": {"description": "text of at most 100 characters; by the path if absent or null"},
                "event": {"description": "the event's name"},
                "userId": {"description": "who did it"},
                "anonymousId": {"description": "who did it, while the user is not known"},
                "timestamp": {"description": "when it happened, as ISO 8601; never corrected"},
                "properties": {"description": "an object with the fields of the event"},
                "context": {"description": "an object of what surrounds the event"},
            },
            "example": {"messageId": "a1", "type": "track", "event": "Seen", "userId": "u1"},
        },
        "CloudEvent": {
            "type": "object",
            "description": "an event of CloudEvents 1.0; one that lacks what each has is rejected",
            "properties": {
                "specversion": {"description": 'text: "1.0"'},
                "id": {"description": "text that is not empty, or an integer"},
                "source": {"description": "text that is not empty; source and id identify an event"},
                "type": {"description": "text that is not empty"},
                "time": {"description": "when it happened, as RFC 3339; never corrected"},
                "subject": {"description": "what it is about, within its source"},
                "datacontenttype": {"description": "the media type of data"},
                "data": {"description": "any JSON"},
                "data_base64": {"description": "data that are no JSON"},
            },
            "example": {"specversion": "1.0", "id": "a1", "source": "/shop", "type": "com.example.sold"},
        },
        "CloudEvents": {"anyOf": [ref("schemas", "CloudEvent"), items]},
        "EventOrArray": {"anyOf": [ref("schemas", "Event"), items]},
        "Batch": batch,
        "BatchOrEvents": {
            "anyOf": [
                ref("schemas", "Batch"),
                items,
                {
                    "allOf": [ref("schemas", "Event"), {"not": {"required": ["batch"]}}],
                    "anyOf": [{"required": [name]} for name in sorted(EVENT_FIELDS)],
                },
            ]
        },
        "SessionBatch": {
            "type": "object",
            "description": "a batch of a client session, said in the body instead of the head; each event "
            "has a sequence, a whole number of 64 bits from 1, or firstSequence counts them",
            "required": ["batch", "client", "session"],
            "properties": {
                **batch["properties"],
                "client": CLIENT,
                "session": SESSION,
                "epoch": {**_U64, "minimum": 1},
                "acknowledgedThrough": _U64,
                "ended": {"description": "true: no more events follow; a hint"},
                "firstSequence": {**_U64, "minimum": 1, "maximum": U64_MAX - request_events_max},
            },
        },
        "Events": {"anyOf": [ref("schemas", name) for name in ("SessionBatch", "Batch", "Event")] + [items]},
        "Client": {
            "type": "object",
            "description": "Gateway-Client in the head does as well",
            "required": ["client"],
            "properties": {"client": CLIENT},
        },
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
                "receipts": {"type": "array", "items": ref("schemas", "Receipt")},
                "rejected": {"type": "array", "minItems": 1, "items": ref("schemas", "Rejected")},
                "warnings": {"type": "array", "minItems": 1, "items": ref("schemas", "Warning")},
            },
            "additionalProperties": False,
        },
        "Receipt": {
            "type": "object",
            "required": ["messageId"],
            "properties": {
                "messageId": {"type": "string"},
                "partition": {"type": "integer", "minimum": 0},
                "offset": {"type": "integer", "minimum": 0},
                "idempotent": {"const": False, "description": "a retry would be stored again"},
                "warnings": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "what of the event could not be stored as it was sent",
                },
                "sequence": {**_U64, "minimum": 1, "description": "of an event of a client session"},
                "stale": {"const": True, "description": "stored or acknowledged; its place is forgotten"},
            },
            "oneOf": [{"required": ["partition", "offset"]}, {"required": ["sequence", "stale"]}],
            "additionalProperties": False,
        },
        "NewSession": {
            "type": "object",
            "required": ["session"],
            "properties": {"session": {"type": "string", "minLength": 27, "maxLength": 27}},
            "additionalProperties": False,
        },
        "Session": _session(),
        "Warning": {
            "type": "object",
            "description": "in development only: an event that is stored, and is probably wrong",
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
                "retriable": {"const": True, "description": "it is kept nowhere: send it again"},
            },
            "additionalProperties": False,
        },
    }


def _session() -> Schema:
    properties: Schema = {
        "client": CLIENT,
        "session": SESSION,
        "epoch": {**_U64, "description": "the newest; 0: none"},
        "watermark": {**_U64, "description": "every sequence up to it is stored or acknowledged"},
        "acknowledgedThrough": _U64,
        "highest": _U64,
        "missing": {
            "type": "array",
            "description": "first and last sequence of each range that is not stored below the highest",
            "items": {"type": "array", "items": _U64, "minItems": 2, "maxItems": 2},
        },
    }
    expired = {"const": True, "description": "no new sequence of it is accepted: begin another session"}
    return {
        "type": "object",
        "required": list(properties),
        "properties": {**properties, "expired": expired},
        "additionalProperties": False,
    }


def _digits(first: str) -> Schema:
    """Return the schema of a number of 64 bits as text; it excludes the few largest."""
    return {"type": "string", "pattern": f"^({first}|[1-9][0-9]{{1,18}}|1[0-7][0-9]{{18}})$", "example": "1"}


def _session_header(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "header", "schema": schema, "description": description}


def parameters() -> Schema:
    """Return the parameters of several operations."""
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
            "description": "return=representation asks for receipts, return=minimal for none; "
            "handling=strict refuses events of a client session that are not the next one",
        },
        "Client": _session_header("Gateway-Client", CLIENT, "the installation"),
        "Session": _session_header("Gateway-Session", SESSION, "made by the client, or by POST /v1/sessions"),
        "Epoch": _session_header("Gateway-Session-Epoch", _digits("[1-9]"), "fences all smaller ones"),
        "AcknowledgedThrough": _session_header(
            "Gateway-Acknowledged-Through", _digits("0|[1-9]"), "every answer up to this sequence has arrived"
        ),
        "Ended": _session_header(
            "Gateway-Session-Ended", {"type": "string"}, "true: no more events follow; a hint"
        ),
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


def headers() -> Schema:
    """Return the headers of answers."""
    count: Schema = {"type": "integer", "minimum": 0}
    return {
        "Gateway-Accepted": {"schema": count, "description": "events that were new", "required": True},
        "Gateway-Duplicates": {"schema": count, "description": "events that were known", "required": True},
        "Gateway-Rejected": {
            "schema": count,
            "description": "events that were not stored; the body names each in rejected",
            "required": True,
        },
        "Idempotent-Replayed": {"schema": {"const": "true"}, "description": "nothing was new"},
        "Preference-Applied": {"schema": {"enum": _preferences_applied()}},
        "Gateway-Source": {
            "schema": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
            "description": "stands for the write key's source",
            "required": True,
        },
        "Gateway-Session-Watermark": {"schema": _U64, "description": "every sequence up to it is stored"},
        "Gateway-Session-Missing": {
            "schema": {"type": "string", "pattern": r"^\d+(-\d+)?(,\d+(-\d+)?){0,31}(,\.\.\.)?$"},
            "description": "not stored below the highest: at most 32 ranges, and whether there are more",
        },
        "Retry-After": {"schema": {"type": "integer", "minimum": 1, "maximum": 300}, "required": True},
    }


def _preferences_applied() -> list[str]:
    returns: list[Return | None] = ["representation", "minimal", None]
    return [
        applied
        for is_strict in (False, True)
        for returned in returns
        if (applied := Preferences(returned, is_strict).applied)
    ]


def problem_of(status: int) -> Schema:
    """Return the answer of an error status."""
    codes = [code for code, problem in PROBLEMS.items() if problem.status == status]
    answer = json_answer(
        HTTPStatus(status).phrase,
        {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"enum": codes}, "message": {"type": "string"}},
            "additionalProperties": False,
        },
    )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        answer["headers"] = {"Retry-After": ref("headers", "Retry-After")}
    return answer


def json_answer(description: str, schema: Schema) -> Schema:
    """Return an answer in JSON."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def ref(section: str, name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{section}/{name}"}
