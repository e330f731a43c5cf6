"""The limits of this worker as metrics: a figure means little without its limit."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.settings.model import Settings
from dedupe.partition.queue import BATCH_EVENTS_MAX


class LimitCollector(ScrapedCollector):
    """Limits that figures are compared with; they do not change while the process lives."""

    def __init__(self, settings: Settings) -> None:
        index, limits, lanes = settings.index, settings.limits, settings.log.partitions
        sessions_max = max(1, index.sessions_max // lanes)
        self._limits = (
            ("gateway_window_limit_seconds", "How long ids shall be remembered", index.window),
            (
                "gateway_index_limit_keys",
                "Ids that may be remembered of one partition",
                index.keys_max // lanes,
            ),
            ("gateway_index_memory_limit_bytes", "Memory of all indexes together", index.memory),
            (
                "gateway_sessions_limit",
                "Client sessions that may be remembered of one partition",
                sessions_max,
            ),
            ("gateway_retention_limit_seconds", "How long the log shall keep events", index.retention),
            ("gateway_queue_limit_events", "Events that may wait for one partition", limits.queue_events_max),
            ("gateway_queue_limit_bytes", "Bytes that may wait for one partition", limits.queue_bytes_max),
            ("gateway_batch_limit_events", "Events of one commit", BATCH_EVENTS_MAX),
            ("gateway_disk_free_limit_bytes", "With less free, requests are refused", limits.disk_free_min),
            ("gateway_answer_limit_seconds", "How long a request may wait", limits.answer_timeout),
        )

    def collect(self) -> Iterator[Metric]:
        for name, text, value in self._limits:
            yield GaugeMetricFamily(name, text, value)
