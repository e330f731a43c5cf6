"""
How long a scrape of /metrics blocks the ingest's event loop, which collects metrics but does not render them.

    .venv/bin/python -m loadtests.bench.metrics_scrape [--partitions 8 64]

"whole" is the time with rendering.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from app.admin.edge_metrics import EdgeCollector
from app.admin.lane_metrics import LaneCollector
from app.build import build_ingress_limits, build_router
from app.http.request_metrics import RequestMetrics
from app.ingest.routes.paths import PATHS
from app.settings.data_dir import index_path, sqlite_path
from app.settings.model import Settings
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.router import Router
from dedupe.storage.log import no_crashpoint
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.sqlite.log import SqliteStore
from tests.support.settings import make_settings

ROUNDS = 50


def registry_of(router: Router, settings: Settings) -> CollectorRegistry:
    """Return the ingest's collectors, after a request of every route."""
    registry = CollectorRegistry()
    requests = RequestMetrics()
    for path in PATHS:
        for status in (200, 400, 503):
            requests.observe(path.template, status, 0.01)
    edge = EdgeCollector(build_ingress_limits(settings, SystemClock(), index_files=0))
    for collector in (requests, LaneCollector(router), edge):
        registry.register(collector)
    return registry


def median_ms(function: Callable[[], object]) -> float:
    """Return the duration of a call."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3


async def measure(folder: Path, partitions: int) -> None:
    """Measure on lanes that serve, and print."""
    settings = make_settings(mode="development", log="sqlite", data_dir=folder, partitions=partitions)
    store = await SqliteStore.open(sqlite_path(folder))
    await store.create_topic(settings.log.topic, partitions)
    await store.create_topic(settings.log.quarantine_topic, settings.log.quarantine_partitions)
    lanes = partitions + settings.log.quarantine_partitions
    indexes = RocksStore(
        index_path(folder), lanes=lanes, memory_bytes=settings.index.memory, keys_max=1_000_000
    )
    identity = Identity(settings.gateway.identity_key)
    router = build_router(
        settings,
        store,
        indexes,
        identity=identity,
        clock=SystemClock(),
        crashpoint=no_crashpoint,
    )
    tasks = [asyncio.create_task(lane.run()) for lane in router.all_lanes]
    while not router.is_ready:  # noqa: ASYNC110 - it follows from the states of all lanes
        await asyncio.sleep(0.05)
    registry = registry_of(router, settings)
    held, whole = median_ms(lambda: list(registry.collect())), median_ms(lambda: generate_latest(registry))
    print(f"{partitions:4} partitions: held {held:5.2f} ms, whole {whole:5.2f} ms, ratio {held / whole:.2f}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.close()


def main() -> None:
    """Measure for each number of partitions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--partitions", type=int, nargs="+", default=[8, 64])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for partitions in parser.parse_args().partitions:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(Path(folder), partitions))


if __name__ == "__main__":
    main()
