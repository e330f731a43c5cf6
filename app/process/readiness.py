"""Whether requests are accepted now, for load balancers and operators."""

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from dedupe.router import Router


def readiness_of(router: Router) -> dict[str, Any]:
    """
    Return whether the gateway is ready, and why.

    `share` is the part of requests with a single event that would be stored; a large batch needs all lanes.
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
        "share": round(router.storing / len(router.lanes), 4) if takes_requests else 0.0,
        "active_quarantine_lanes": sum(route.is_serving for route in router.quarantine_routes),
        "quarantine_lanes": len(router.quarantine_lanes),
    }


def health_endpoint(router: Router) -> ASGIApp:
    """Return the load balancers' endpoint on the ingest port: 200 while requests are accepted, else 503."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        is_ready = router.is_ready
        body = b'{"ready":true}' if is_ready else b'{"ready":false}'
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if is_ready else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer
