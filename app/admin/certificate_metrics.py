"""When this worker's certificates end, and for how long they are made, as metrics."""

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.settings.model import Settings
from dedupe.certificate import validity_of


class CertificateCollector(ScrapedCollector):
    """Reads the files at each scrape: one that was renewed is loaded with the next connection only."""

    def __init__(self, settings: Settings) -> None:
        self._files = (
            ("peer", "certificate for other workers", settings.group.peer_tls_cert_file),
            ("kafka", "client certificate for Kafka", settings.log.kafka.ssl_cert_file),
        )

    def collect(self) -> Iterator[Metric]:
        for name, text, path in self._files:
            prefix = f"gateway_{name}_certificate"
            expires = GaugeMetricFamily(f"{prefix}_expires_seconds", f"Time until the {text} ends", labels=[])
            lifetime = GaugeMetricFamily(
                f"{prefix}_lifetime_seconds", f"Time from the begin to the end of the {text}", labels=[]
            )
            if path is not None and (found := validity_of(path)) is not None:
                expires.add_metric([], round(found.end.timestamp() - time.time()))
                lifetime.add_metric([], round((found.end - found.begin).total_seconds()))
            yield expires
            yield lifetime
