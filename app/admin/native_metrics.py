"""Metrics of the native path, for /metrics and /admin/v1/stats."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.ingest.native import NativePath


class NativeCollector(ScrapedCollector):
    """Collects at each scrape, in the ingest's event loop."""

    def __init__(self, native: NativePath) -> None:
        self._native = native

    def collect(self) -> Iterator[Metric]:
        native = self._native
        info = GaugeMetricFamily(
            "gateway_native_info", "1 while the native module is in use", labels=["version"]
        )
        info.add_metric([native.version], 1)
        yield info
        yield CounterMetricFamily(
            "gateway_native_events", "Events identified by the native module", native.events
        )
        yield CounterMetricFamily(
            "gateway_native_odd_events",
            "Events of bodies read by the native module that the Python path identified",
            native.odd_events,
        )
        yield CounterMetricFamily(
            "gateway_native_other_bodies",
            "Bodies that the native module left to the Python path",
            native.other_bodies,
        )
        yield CounterMetricFamily(
            "gateway_native_panics",
            "Faults of the native module, each of which the Python path has made good",
            native.panics,
        )


def native_document(native: NativePath | None) -> dict[str, Any] | None:
    """Return the same as a field of the stats document; None without the module."""
    if native is None:
        return None
    return {
        "version": native.version,
        "events": native.events,
        "odd_events": native.odd_events,
        "other_bodies": native.other_bodies,
        "panics": native.panics,
    }
