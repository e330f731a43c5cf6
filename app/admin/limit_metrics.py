"""What this worker is told to keep to, as metrics: a figure means little without its limit."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.config import Settings


class LimitCollector(Collector):
    """Settings that a figure is compared with; they do not change while the process lives."""

    def __init__(self, settings: Settings) -> None:
        """Take them."""
        keys_max, lanes = settings.index_keys_max, settings.partitions
        self._limits = (
            ("gateway_window_limit_seconds", "How long ids shall be remembered", settings.window),
            ("gateway_index_limit_keys", "Ids that may be remembered of one partition", keys_max // lanes),
            ("gateway_index_memory_limit_bytes", "Memory of all indexes together", settings.index_memory),
            (
                "gateway_sessions_limit",
                "Client sessions that may be remembered of one partition",
                max(1, settings.sessions_max // lanes),
            ),
            ("gateway_retention_limit_seconds", "How long the log shall keep events", settings.retention),
            (
                "gateway_queue_limit_events",
                "Events that may wait for one partition",
                settings.queue_events_max,
            ),
            ("gateway_queue_limit_bytes", "Bytes that may wait for one partition", settings.queue_bytes_max),
            ("gateway_batch_limit_events", "Events of one commit", settings.batch_events_max),
            ("gateway_disk_free_limit_bytes", "With less free, requests are refused", settings.disk_free_min),
            ("gateway_answer_limit_seconds", "How long a request may wait", settings.answer_timeout),
        )

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for name, text, value in self._limits:
            yield GaugeMetricFamily(name, text, value)
