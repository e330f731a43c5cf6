"""Metrics of the native module, for /metrics and /admin/v1/stats."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.telemetry.native_use import NativeUse


class NativeCollector(ScrapedCollector):
    """Collects at each scrape, in the ingest's event loop."""

    def __init__(self, use: NativeUse) -> None:
        self._use = use

    def collect(self) -> Iterator[Metric]:
        use = self._use
        info = GaugeMetricFamily(
            "gateway_native_info", "1 while the native module is in use", labels=["version"]
        )
        info.add_metric([use.version], 1)
        yield info
        yield CounterMetricFamily(
            "gateway_native_events", "Events identified by the native module", use.events
        )
        yield CounterMetricFamily(
            "gateway_native_odd_events",
            "Events of bodies read by the native module that the Python code identified",
            use.odd_events,
        )
        yield CounterMetricFamily(
            "gateway_native_other_events",
            "Events of all other bodies, which the Python code identified",
            use.other_events,
        )
        bodies = CounterMetricFamily(
            "gateway_native_other_bodies",
            "Bodies left to the Python code: larger than 2 MiB, no JSON that it reads, or of another form",
            labels=["reason"],
        )
        for reason, count in use.other_bodies.items():
            bodies.add_metric([reason], count)
        yield bodies
        yield CounterMetricFamily(
            "gateway_native_panics",
            "Faults of the native module, in any of its uses, each of which the Python code has made good",
            use.panics,
        )


def native_document(use: NativeUse | None) -> dict[str, Any] | None:
    """Return the same as a field of the stats document; None without the module."""
    if use is None:
        return None
    return {
        "version": use.version,
        "events": use.events,
        "odd_events": use.odd_events,
        "other_events": use.other_events,
        "other_bodies": dict(use.other_bodies),
        "panics": use.panics,
    }
