"""The topics of which nothing is promised: observed events by verdict, and samples of duplicates."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.ingest.duplicate_samples import DuplicateSamples
from app.ingest.observed import Observed
from app.ingest.side_topic import SideTopic


class ObservedCollector(ScrapedCollector):
    """Metrics of a trial."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        yield _records_of(
            self._observed.topic,
            "gateway_observed_records",
            "Records of decided events with GATEWAY_OBSERVE: appended, or dropped since the log was too slow",
        )


class SampleCollector(ScrapedCollector):
    """Metrics of samples of duplicates."""

    def __init__(self, samples: DuplicateSamples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        records = _records_of(
            self._samples.topic,
            "gateway_duplicate_samples",
            "Duplicates with GATEWAY_DUPLICATE_SAMPLES: appended, dropped since the log was too slow, or "
            "left out beyond the quota of their source",
        )
        records.add_metric(["left_out"], self._samples.left_out)
        yield records


def observed_document(observed: Observed | None) -> dict[str, Any] | None:
    """Return the trial's part of the statistics; None without one."""
    if observed is None:
        return None
    return _counts_of(observed.topic) | {"verdicts": dict(observed.verdicts)}


def samples_document(samples: DuplicateSamples | None) -> dict[str, Any] | None:
    """Return what became of duplicates that may be sampled; None if none is."""
    return None if samples is None else _counts_of(samples.topic) | {"left_out": samples.left_out}


def _counts_of(topic: SideTopic) -> dict[str, Any]:
    return {"appended": topic.appended, "dropped": topic.dropped}


def _records_of(topic: SideTopic, name: str, help_text: str) -> CounterMetricFamily:
    records = CounterMetricFamily(name, help_text, labels=["result"])
    for result, count in _counts_of(topic).items():
        records.add_metric([result], count)
    return records
