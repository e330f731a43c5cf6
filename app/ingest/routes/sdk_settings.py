"""
Settings documents, which SDKs request before they send events.

When this fails, Segment's mobile SDKs use built-in settings, and send events to Segment's own host: so their
document is served for every key, unknown ones included. Each document disables the SDK's own telemetry.
"""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.auth.write_keys import WriteKeys, find_write_key, log_in
from app.http.errors import DisabledWriteKeyError
from app.http.request_context import CONTEXT, RequestContext
from app.ingest.routes.path_table import Handler
from app.ingest.routes.paths import Kind, Path

UNCHANGED_SINCE = "2026-01-01T00:00:00.000Z"
"""RudderStack's SDKs treat another `updatedAt` as another configuration."""


def settings_handlers(write_keys: WriteKeys, public_host: str | None) -> dict[Kind, Handler]:
    """Return the handlers of the paths of settings documents."""

    async def get_segment(request: Request, _path: Path) -> Response:
        return _json(segment_settings(request.path_params["writeKey"], public_host))

    async def get_rudderstack(request: Request, _path: Path) -> Response:
        context: RequestContext = request.scope[CONTEXT]
        write_key = find_write_key(context.headers, request.scope["query_string"], None)
        try:
            log_in(write_keys, write_key, request.scope)
        except DisabledWriteKeyError:
            return _json(rudderstack_settings(write_key, enabled=False))
        return _json(rudderstack_settings(write_key, enabled=True))

    return {Kind.SEGMENT_SETTINGS: get_segment, Kind.RUDDERSTACK_SETTINGS: get_rudderstack}


def segment_settings(write_key: str, public_host: str | None) -> dict[str, Any]:
    """
    Return the document of Segment's SDKs.

    Args:
        write_key: the key in the document, which SDKs require.
        public_host: the host to which SDKs send, over https. Without it they use the host that the app has
            configured.
    """
    destination = {
        "apiKey": write_key,
        "httpConfig": {"rateLimitConfig": {"enabled": True}, "backoffConfig": {"enabled": True}},
    }
    if public_host is not None:
        destination["apiHost"] = f"{public_host}/v1"
    return {
        "integrations": {"Segment.io": destination},
        "plan": {"track": {"__default": {"enabled": True}}},
        "edgeFunction": {},
        "analyticsNextEnabled": True,
        "middlewareSettings": {},
        "enabledMiddleware": {},
        "metrics": {"sampleRate": 0},
        "remotePlugins": [],
    }


def rudderstack_settings(write_key: str, *, enabled: bool) -> dict[str, Any]:
    """Return the document of RudderStack's SDKs, which send nothing for a disabled source."""
    return {
        "source": {
            "config": {"statsCollection": {"errors": {"enabled": False}, "metrics": {"enabled": False}}},
            "id": write_key,
            "name": write_key,
            "writeKey": write_key,
            "enabled": enabled,
            "workspaceId": "gateway",
            "connections": [],
            "destinations": [],
            "dataplanes": {},
            "updatedAt": UNCHANGED_SINCE,
        },
        "updatedAt": UNCHANGED_SINCE,
        "consentManagementMetadata": {},
    }


def _json(document: dict[str, Any]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
