"""The wrong settings of Kafka's topics and brokers, as a metric."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.process.setting_watch import SettingWatch


class SettingCollector(ScrapedCollector):
    """What the last look has found."""

    def __init__(self, watch: SettingWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gateway_topic_setting_wrong",
            "1 for each setting of a topic, or of brokers (no topic), with which production would not start",
            labels=["topic", "setting"],
        )
        wrong = {(each.topic, each.setting) for each in self._watch.problems if each.is_wrong}
        for labels in sorted(wrong):
            family.add_metric(labels, 1)
        yield family
