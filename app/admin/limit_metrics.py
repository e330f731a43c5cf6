"""The limits of this worker as metrics."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.settings.limits import QUEUE_EVENTS_MAX
from app.settings.model import Settings
from dedupe.partition.queue import BATCH_EVENTS_MAX


class LimitCollector(ScrapedCollector):
    """Limits, which do not change while the process lives."""

    def __init__(self, settings: Settings) -> None:
        index, limits, lanes = settings.index, settings.limits, settings.log.partitions
        sessions_max = max(1, index.sessions_max // lanes)
        self._limits = (
            ("gateway_window_limit_seconds", "Configured window", index.window),
            (
                "gateway_index_limit_keys",
                "Limit of remembered ids of one partition",
                index.keys_max // lanes,
            ),
            ("gateway_index_memory_limit_bytes", "Limit of the memory of all indexes", index.memory),
            (
                "gateway_sessions_limit",
                "Limit of remembered client sessions of one partition",
                sessions_max,
            ),
            ("gateway_retention_limit_seconds", "Configured retention of the log", index.retention),
            (
                "gateway_queue_limit_events",
                "Limit of queued events of one partition",
                QUEUE_EVENTS_MAX,
            ),
            ("gateway_queue_limit_bytes", "Limit of queued bytes of one partition", limits.queue_bytes_max),
            ("gateway_batch_limit_events", "Limit of events of one commit", BATCH_EVENTS_MAX),
            (
                "gateway_disk_free_limit_bytes",
                "Free space below which requests are refused",
                limits.disk_free_min,
            ),
            ("gateway_answer_limit_seconds", "Time limit of a request", limits.answer_timeout),
        )

    def collect(self) -> Iterator[Metric]:
        for name, text, value in self._limits:
            yield GaugeMetricFamily(name, text, value)
