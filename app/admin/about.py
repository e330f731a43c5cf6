"""Versions and settings of this worker."""

import platform
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Response

from app.admin.answers import json_answer
from app.admin.scopes import READ
from app.admin.stats import SCHEMA_VERSION
from app.settings.effective import effective
from app.settings.model import Settings
from app.settings.version import VERSION
from dedupe.model.record import VERSION as RECORD_VERSION
from dedupe.storage.index import IndexIdentity

LIBRARIES = ("aiokafka", "fastapi", "orjson", "rocksdict", "uvicorn", "uvloop")
"""The libraries that a bug report should name."""


def add_about(app: FastAPI, settings: Settings) -> None:
    """Add the paths; their documents do not change while the process lives."""
    versions, configured = version_document(), config_document(settings)

    @app.get("/admin/v1/version", dependencies=[READ])
    async def get_version() -> Response:
        """Return the versions of the gateway, of its formats, and of its libraries."""
        return json_answer(versions)

    @app.get("/admin/v1/config", dependencies=[READ])
    async def get_config() -> Response:
        """Return every setting in force with its origin, without the values of secrets."""
        return json_answer(configured)


def version_document() -> dict[str, Any]:
    """Return the versions of this worker."""
    return {
        "version": VERSION,
        "record_version": RECORD_VERSION,
        "index_format": IndexIdentity._field_defaults["format_version"],
        "stats_schema_version": SCHEMA_VERSION,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def config_document(settings: Settings) -> dict[str, Any]:
    """Return the settings in the order of docs/settings.md, as `gateway config` does."""
    return {
        "settings": [each._asdict() | {"origin": each.origin.value} for each in effective(settings)],
        "warnings": list(settings.warnings()),
    }
