"""
The table of all paths of the ingest port, for routing, documentation and metrics.

tests/e2e/sdks checks the paths with the SDKs. A path has one method; a template has at most one {parameter},
for one segment.
"""

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The kind of a path; app.ingest.application has the handlers, app.ingest.openapi the descriptions."""

    EVENTS = "events"  # native: one event, an array or a batch
    BATCH = "batch"  # an object with a `batch` array
    SINGLE = "single"  # one event
    CLOUDEVENTS = "cloudevents"  # one CloudEvent, or an array of them
    SESSIONS = "sessions"  # native: a new client session
    SESSION = "session"  # native: the state of a client session
    PIXEL = "pixel"  # one event in the query, answered with an image
    TELEMETRY = "telemetry"  # metrics of the SDKs themselves: discarded
    SEGMENT_SETTINGS = "segment settings"
    RUDDERSTACK_SETTINGS = "rudderstack settings"
    OPENAPI = "openapi"


class Path(NamedTuple):
    """One path."""

    template: str
    kind: Kind
    who: str
    event_type: str = "track"  # of events without a type, unless the path has a parameter for it

    @property
    def methods(self) -> tuple[str, ...]:
        """The supported methods besides the OPTIONS of preflights, the main one first."""
        match self.kind:
            case Kind.EVENTS | Kind.BATCH | Kind.SINGLE | Kind.SESSIONS | Kind.TELEMETRY:
                return ("POST",)
            case Kind.CLOUDEVENTS:
                return ("POST", "OPTIONS")  # the handshake of webhooks
            case Kind.PIXEL:
                return ("GET",)  # not HEAD, which would store the event
            case _:
                return ("GET", "HEAD")


TYPES = ("track", "page", "identify", "group", "alias", "screen")

PATHS = (
    Path("/v1/batch", Kind.BATCH, "Segment's and RudderStack's server SDKs, RudderStack's mobile SDKs"),
    Path("/v1/events", Kind.EVENTS, "the native path"),
    Path("/v1/cloudevents", Kind.CLOUDEVENTS, "the SDKs of CloudEvents, and webhooks"),
    Path("/v1/sessions", Kind.SESSIONS, "clients of the native path"),
    Path("/v1/sessions/{session}", Kind.SESSION, "clients of the native path"),
    Path("/v1/b", Kind.BATCH, "Segment's Analytics.js (batching), Swift, Kotlin and React Native"),
    Path("/v1/import", Kind.BATCH, "Segment's Ruby, Java and older Android SDKs"),
    Path("/beacon/v1/batch", Kind.BATCH, "RudderStack's JavaScript SDK with beacons"),
    Path("/v1/batch/b", Kind.BATCH, "Segment's React Native with a batch URL for its host"),
    Path("/b", Kind.BATCH, "Segment's mobile SDKs with a host without /v1"),
    Path("/batch", Kind.BATCH, "server SDKs with a host without /v1"),
    *(Path(f"/v1/{kind[0]}", Kind.SINGLE, "Segment's Analytics.js", kind) for kind in TYPES),
    *(
        Path(f"/v1/{kind}", Kind.SINGLE, "RudderStack's JavaScript SDK, and HTTP without an SDK", kind)
        for kind in TYPES
    ),
    Path("/api/s/{type}", Kind.SINGLE, "@jitsu/js"),
    Path("/api/s/s2s/{type}", Kind.SINGLE, "@jitsu/js on a server"),
    Path("/api/s/s2s/batch", Kind.BATCH, "Jitsu's HTTP API"),
    Path("/v1/pixel/{type}", Kind.PIXEL, "Segment's pixel"),
    Path("/pixel/v1/{type}", Kind.PIXEL, "RudderStack's pixel"),
    Path("/v1/m", Kind.TELEMETRY, "Segment's Analytics.js, Kotlin and Swift"),
    Path("/v1/projects/{writeKey}/settings", Kind.SEGMENT_SETTINGS, "Segment's web and mobile SDKs"),
    Path(
        "/v1/projects/projects/{writeKey}/settings",
        Kind.SEGMENT_SETTINGS,
        "Segment's mobile SDKs with a projects URL for their host",
    ),
    Path("/sourceConfig", Kind.RUDDERSTACK_SETTINGS, "RudderStack's web and mobile SDKs"),
    Path("/openapi.json", Kind.OPENAPI, "you"),
)

PATH_WORDS = frozenset(
    word for path in PATHS for word in path.template.split("/") if not word.startswith("{")
)
"""The words of all templates, which may be logged."""
