"""Metrics of snapshots, collected at each scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from dedupe.partition.snapshotter import Snapshotter

LANE_LABELS = ("topic", "partition")


class SnapshotCollector(ScrapedCollector):
    """The snapshots of the lanes of one process."""

    def __init__(self, snapshotter: Snapshotter) -> None:
        self._snapshotter = snapshotter

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "gateway_snapshot_age_seconds",
            "Age of the newest snapshot of an index that is served here; without one, since the start",
            labels=LANE_LABELS,
        )
        lag = GaugeMetricFamily(
            "gateway_snapshot_lag_records",
            "Records of the index that its newest snapshot does not have",
            labels=LANE_LABELS,
        )
        made = CounterMetricFamily("gateway_snapshots_made", "Snapshots made", labels=LANE_LABELS)
        sent = CounterMetricFamily(
            "gateway_snapshot_sent_bytes", "Bytes sent to the bucket", labels=LANE_LABELS
        )
        restored = CounterMetricFamily(
            "gateway_snapshot_restores", "Lost indexes that began with a snapshot", labels=LANE_LABELS
        )
        failures = CounterMetricFamily(
            "gateway_snapshot_failures",
            "Snapshots that were not made or not used, by reason",
            labels=[*LANE_LABELS, "reason"],
        )
        for lane in self._snapshotter.lanes:
            labels, metrics = [lane.topic, str(lane.partition)], lane.metrics
            if lane.is_serving:
                age.add_metric(labels, round(self._snapshotter.age_s(lane), 1))
                lag.add_metric(labels, self._snapshotter.lag_records(lane))
            made.add_metric(labels, metrics.snapshots_made)
            sent.add_metric(labels, metrics.snapshot_bytes)
            restored.add_metric(labels, metrics.restored_snapshots)
            for reason, count in metrics.snapshots_failed.items():
                failures.add_metric([*labels, reason], count)
        yield from (age, lag, made, sent, restored, failures)
        yield GaugeMetricFamily(
            "gateway_snapshot_drill_age_seconds",
            "Age of the last drill, which restores a snapshot and proves it; without one, since the start",
            self._snapshotter.drill_age_s,
        )
