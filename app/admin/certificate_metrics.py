"""When this worker's certificates end, as metrics."""

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.settings.model import Settings
from dedupe.certificate import end_of


class CertificateCollector(ScrapedCollector):
    """Reads the files at each scrape: one that was renewed is loaded with the next connection only."""

    def __init__(self, settings: Settings) -> None:
        self._files = (
            (
                "gateway_peer_certificate_expires_seconds",
                "Time until the certificate for other workers ends",
                settings.group.peer_tls_cert_file,
            ),
            (
                "gateway_kafka_certificate_expires_seconds",
                "Time until the client certificate for Kafka ends",
                settings.log.kafka.ssl_cert_file,
            ),
        )

    def collect(self) -> Iterator[Metric]:
        for name, text, path in self._files:
            family = GaugeMetricFamily(name, text, labels=[])
            if path is not None and (end := end_of(path)) is not None:
                family.add_metric([], round(end.timestamp() - time.time()))
            yield family
