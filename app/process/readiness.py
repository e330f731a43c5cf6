"""Whether requests would be taken now, for load balancers and operators."""

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from dedupe.router import Router

HEALTH_PATH = "/health"


def readiness_of(router: Router) -> dict[str, Any]:
    """
    Return the verdict and what it follows from.

    `share` is the part of all requests with a single event that would be taken; a batch needs every
    lane that its events touch, so a large one needs all.
    """
    active = sum(route.is_serving for route in router.routes)
    takes_requests = router.has_disk_room and not router.is_draining
    return {
        "ready": router.is_ready,
        "draining": router.is_draining,
        "disk_has_room": router.has_disk_room,
        "active_lanes": active,
        "lanes": len(router.lanes),
        "outage": router.outage,
        "share": round(active / len(router.lanes), 4) if takes_requests else 0.0,
        "active_quarantine_lanes": sum(route.is_serving for route in router.quarantine_routes),
        "quarantine_lanes": len(router.quarantine_lanes),
    }


class Health:
    """Answers load balancers on the ingest port: no event traffic, so nothing counts or delays it."""

    def __init__(self, app: ASGIApp, router: Router) -> None:
        """Wrap an application."""
        self._app = app
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"] != HEALTH_PATH or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        is_ready = self._router.is_ready
        body = b'{"ready":true}' if is_ready else b'{"ready":false}'
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if is_ready else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
