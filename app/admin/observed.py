"""The trial: what was noted of all events, by verdict, and what of it is in the topic of observed events."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.ingest.observed import Observed


class ObservedCollector(ScrapedCollector):
    """Metrics of a trial."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        records = CounterMetricFamily(
            "gateway_observed_records",
            "Records of decided events with GATEWAY_OBSERVE: appended, or dropped since the log was too slow",
            labels=["result"],
        )
        records.add_metric(["appended"], self._observed.appended)
        records.add_metric(["dropped"], self._observed.dropped)
        yield records


def observed_document(observed: Observed | None) -> dict[str, Any] | None:
    """Return the trial's part of the statistics; None without one."""
    if observed is None:
        return None
    counts = {"appended": observed.appended, "dropped": observed.dropped}
    return counts | {"verdicts": dict(observed.verdicts)}
