"""The base of collectors that collect at each scrape."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class ScrapedCollector(Collector):
    """A collector that does not collect when it is registered."""

    def describe(self) -> Iterator[Metric]:
        return iter(())
