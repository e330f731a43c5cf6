"""Metrics of quotas, disk, memory, connections and write keys, for /metrics and /admin/v1/stats."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.admin.stats import SOURCES_TOLD
from app.auth.ingress_limits import IngressLimits
from app.auth.key_file import KeyFile

REMOVED_TOLD = 50
"""The limit of keys in the stats document; `/admin/v1/write-keys` has more."""


class EdgeCollector(ScrapedCollector):
    """Collects at each scrape, in the ingest's event loop."""

    def __init__(self, ingress: IngressLimits) -> None:
        self.ingress = ingress

    @property
    def key_file(self) -> KeyFile | None:
        """The keys, None without a key file."""
        keys = self.ingress.write_keys
        return keys if isinstance(keys, KeyFile) else None

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "gateway_quota_refused_requests", "Requests over a quota of their write key", labels=["limit"]
        )
        for limit, count in self.ingress.quotas.refusals.items():
            refused.add_metric([limit], count)
        yield refused
        by_source = CounterMetricFamily(
            "gateway_source_quota_refused_requests", "The same by source", labels=["source", "limit"]
        )
        for (source, limit), count in self.ingress.quotas.source_refusals.items():
            by_source.add_metric([source, limit], count)
        yield by_source
        yield from self._resources()
        if (key_file := self.key_file) is not None:
            status = key_file.status
            yield GaugeMetricFamily("gateway_write_keys", "Write keys in use", status.keys)
            yield GaugeMetricFamily(
                "gateway_write_keys_removed",
                "Write keys that have vanished from the file and still work",
                status.removed,
            )
            yield CounterMetricFamily(
                "gateway_unknown_write_key_requests",
                "Requests with an unknown write key",
                key_file.unknown.requests,
            )
            yield GaugeMetricFamily(
                "gateway_write_keys_age_seconds", "Age of the write keys in use", status.age_s
            )
            yield GaugeMetricFamily(
                "gateway_write_keys_stale", "1 if the file of write keys is unusable", int(status.is_stale)
            )
            yield CounterMetricFamily(
                "gateway_write_keys_failures", "Unusable changes of the file of write keys", status.failures
            )

    def _resources(self) -> Iterator[Metric]:
        memory, connections, disk = self.ingress.memory, self.ingress.connections, self.ingress.disk
        yield GaugeMetricFamily(
            "gateway_disk_has_room", "1 if the disk has enough free space for requests", int(disk.has_room)
        )
        yield GaugeMetricFamily(
            "gateway_disk_free_bytes", "Free space of the data folder's file system", disk.free_bytes
        )
        yield GaugeMetricFamily(
            "gateway_disk_size_bytes", "Size of the data folder's file system", disk.size_bytes
        )
        yield GaugeMetricFamily("gateway_body_memory_bytes", "Memory of request bodies", memory.used)
        yield GaugeMetricFamily(
            "gateway_body_memory_limit_bytes", "Limit of the memory of request bodies", memory.capacity
        )
        yield CounterMetricFamily(
            "gateway_body_memory_refused_requests",
            "Requests refused at the limit of the memory of request bodies",
            memory.refused,
        )
        yield GaugeMetricFamily(
            "gateway_connections_limit", "Limit of open connections", connections.connections_max
        )
        open_now = GaugeMetricFamily("gateway_connections", "Open connections", labels=["state"])
        open_now.add_metric(["idle"], connections.idle)
        open_now.add_metric(["busy"], connections.open - connections.idle)
        yield open_now
        yield CounterMetricFamily(
            "gateway_connections_evicted", "Idle connections closed to make room", connections.evicted
        )
        yield CounterMetricFamily(
            "gateway_connections_refused", "Connections and requests that were too many", connections.refused
        )
        yield CounterMetricFamily(
            "gateway_file_descriptors_out_checks",
            "Checks, one a second, that found no file descriptor left: new connections are closed unanswered",
            self.ingress.files.checks_out,
        )

    def document(self) -> dict[str, Any]:
        """Return the same as fields of the stats document."""
        memory, connections, disk = self.ingress.memory, self.ingress.connections, self.ingress.disk
        fields: dict[str, Any] = {
            "disk": {
                "has_room": disk.has_room,
                "free_bytes": disk.free_bytes,
                "free_min_bytes": disk.free_min_bytes,
            },
            "connections": {
                "open": connections.open,
                "idle": connections.idle,
                "max": connections.connections_max,
                "evicted": connections.evicted,
                "refused": connections.refused,
            },
            "body_memory": {
                "used_bytes": memory.used,
                "peak_bytes": memory.peak,
                "limit_bytes": memory.capacity,
                "refused": memory.refused,
            },
            "quota_refusals": dict(self.ingress.quotas.refusals),
            "source_quota_refusals": _source_quota_refusals(self.ingress.quotas.source_refusals),
            "write_keys": None,
        }
        if (key_file := self.key_file) is not None:
            fields["write_keys"] = keys_document(key_file)
        return fields


def _source_quota_refusals(refusals: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Return the sources with requests over a quota, those with the most first."""
    sources: dict[str, dict[str, int]] = {}
    for (source, limit), count in refusals.items():
        sources.setdefault(source, {})[limit] = count
    ranked = sorted(sources.items(), key=lambda entry: -sum(entry[1].values()))
    return [{"source": source, "limits": limits} for source, limits in ranked[:SOURCES_TOLD]]


def keys_document(key_file: KeyFile) -> dict[str, Any]:
    """Return the state of the write keys, with those that have vanished and the senders of unknown ones."""
    status = key_file.status
    return {
        "keys": status.keys,
        "age_seconds": round(status.age_s, 3),
        "is_stale": status.is_stale,
        "failures": status.failures,
        "removed": status.removed,
        "removed_keys": [
            {
                "key_sha256": prefix,
                "source": known.source.id,
                "since_ms": known.removed_ms,
                "until_ms": key_file.until_ms(known),
                "requests": known.requests,
                "last_used_ms": known.last_used_ms,
            }
            for prefix, known in islice(key_file.removed(), REMOVED_TOLD)
        ],
        "unknown_requests": key_file.unknown.requests,
        "unknown_senders": [
            {**sender._asdict(), **asdict(count)} for sender, count in key_file.unknown.top()
        ],
    }
