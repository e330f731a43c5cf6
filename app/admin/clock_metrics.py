"""Log time beside this machine's clock, as a metric."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from dedupe.model.clock import SystemClock


class ClockCollector(ScrapedCollector):
    """How far log time is from the wall clock."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gateway_log_clock_offset_seconds",
            "Log time minus the wall clock; minutes of it mean a clock that was set, or a pause",
            self._clock.offset_s,
        )
