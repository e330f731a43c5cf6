"""The OpenAPI document of the admin port."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from app.admin.answers import ADMIN_PROBLEMS, PROBLEM_TYPE, json_answer
from app.admin.scopes import READ
from app.settings.version import VERSION

PROBLEM_SCHEMA = {
    "type": "object",
    "description": "RFC 9457",
    "required": ["type", "title", "status", "detail", "code"],
    "additionalProperties": False,
    "properties": {
        "type": {"type": "string", "description": "urn:gateway:problem: and the code"},
        "title": {"type": "string", "description": "of the status"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "the error as a sentence"},
        "code": {"enum": sorted(ADMIN_PROBLEMS)},
    },
}


def add_openapi(app: FastAPI) -> None:
    """Add the path; call it after all others."""

    @app.get("/admin/v1/openapi.json", dependencies=[READ])
    async def get_document() -> Response:
        """Return this document."""
        return json_answer(document)

    document = openapi_document(app)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application; each operation may answer with a problem document."""
    document = get_openapi(
        title="Idempotent ingestion gateway: admin port",
        version=VERSION,
        description="For operators; never public. A writing token may read, too.",
        routes=app.routes,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = PROBLEM_SCHEMA
    problem = {
        "description": "Refused",
        "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if "/admin/v1/stats" in document["paths"]:
        stats = document["paths"]["/admin/v1/stats"]["get"]["responses"]["200"]
        stats["content"] = {"application/json": {"schema": {"$ref": "stats.schema.json"}}}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop(str(HTTPStatus.UNPROCESSABLE_ENTITY.value), None)
            operation["responses"]["default"] = problem
    return document
