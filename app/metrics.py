"""Request metrics: a counter and a histogram, their children bound once per route and code."""

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class RequestMetrics:
    """What the ingest port counts about requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with the admin port's registry."""
        self._requests = Counter(
            "gateway_http_requests", "Requests of the ingest port", ["route", "code"], registry=registry
        )
        self._seconds = Histogram(
            "gateway_http_request_duration_seconds",
            "From head to answer, body included",
            ["route"],
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a path template, never a path."""
        children = self._children.get((route, status))
        if children is None:
            children = self._requests.labels(route, status), self._seconds.labels(route)
            self._children[route, status] = children
        requests, durations = children
        requests.inc()
        durations.observe(seconds)
