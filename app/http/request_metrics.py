"""Request metrics of the ingest port, rendered at each scrape."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.http.refusal_counts import RefusalCounts

BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper edges, up to the time limits of answer and body."""

LINK_FAILURES = ("body_timeout", "body_truncated")
"""The codes of 503s that are no fault of the gateway, and so are no part of its error budget."""


@dataclass(slots=True)
class _Durations:
    """One route's histogram."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    seconds: float = 0.0


class RequestMetrics(Collector):
    """Counts requests by route and code, and how long they took."""

    def __init__(self, refusals: RefusalCounts | None = None) -> None:
        """`refusals`: are collected, too."""
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._durations: defaultdict[str, _Durations] = defaultdict(_Durations)
        self._discarded: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._link_failures = dict.fromkeys(LINK_FAILURES, 0)
        self._refused = refusals or RefusalCounts()
        self.unknown_clients = 0
        """Requests of trusted proxies that do not say who the client is."""

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request; `route` is a path template."""
        self._requests[route, status] += 1
        durations = self._durations[route]
        durations.counts[bisect_left(BUCKETS_S, seconds)] += 1
        durations.seconds += seconds

    def fail(self, code: str) -> None:
        """Count an error that was answered, if the client's own link causes it."""
        if code in self._link_failures:
            self._link_failures[code] += 1

    def discard(self, route: str, reason: str) -> None:
        """Count a request that was answered with 200 although its event was not accepted."""
        self._discarded[route, reason] += 1

    def describe(self) -> Iterator[Metric]:
        """Describe no metrics in advance."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "gateway_http_requests", "Requests of the ingest port", labels=["route", "code"]
        )
        for (route, status), count in self._requests.items():
            requests.add_metric([route, str(status)], count)
        yield requests
        yield from self._refusals()
        discarded = CounterMetricFamily(
            "gateway_http_discarded",
            "Pixels whose event was not accepted, by error code",
            labels=["route", "reason"],
        )
        for (route, reason), count in self._discarded.items():
            discarded.add_metric([route, reason], count)
        yield discarded
        durations = HistogramMetricFamily(
            "gateway_http_request_duration_seconds",
            "Time from head to answer, without the wait for a body",
            labels=["route"],
        )
        edges = [*map(str, BUCKETS_S), "+Inf"]
        for route, observed in self._durations.items():
            buckets = list(zip(edges, map(float, accumulate(observed.counts)), strict=True))
            durations.add_metric([route], buckets, observed.seconds)
        yield durations

    def _refusals(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "gateway_http_refused_requests",
            "Requests of the ingest port, pixels included, whose events were not accepted, by error code",
            labels=["code"],
        )
        for code, count in self._refused.by_code.items():
            refused.add_metric([code], count)
        yield refused
        senders = CounterMetricFamily(
            "gateway_source_refused_requests",
            "The same by source, empty if it was not known yet, and by the library that sent them",
            labels=["code", "status", "source", "library"],
        )
        for sender, count in self._refused.by_sender.items():
            senders.add_metric(list(map(str, sender)), count)
        yield senders
        link = CounterMetricFamily(
            "gateway_http_link_failures",
            "Requests answered with 503 because their client's link was slow or broke off, by error code",
            labels=["code"],
        )
        for code, count in self._link_failures.items():
            link.add_metric([code], count)
        yield link
        yield CounterMetricFamily(
            "gateway_http_unknown_clients",
            "Requests of trusted proxies whose X-Forwarded-For does not say who the client is",
            self.unknown_clients,
        )
