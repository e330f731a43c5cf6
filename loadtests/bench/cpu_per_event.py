"""
The cost of an event in this gateway; faster than `make bench`, for development.

    .venv/bin/python -m loadtests.bench.cpu_per_event [--sessions 1000] [--log kafka --bootstrap-servers X]

Absolute times depend on the machine; compare within one run, by `make bench`.
"""

import argparse
import statistics
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from app.cli.load.connection import request
from loadtests.bench.load import send_all
from loadtests.bench.usage import cpu_seconds
from loadtests.bench.workload import SessionWorkload, make_bodies
from tests.support.gateway import Gateway

WARM_UP_BATCHES = 50


def measure(gateway: Gateway, requests: Sequence[bytes], batch_events: int, connections: int) -> str:
    """Send all requests, and print their cost in the gateway."""
    before, events = cpu_seconds(gateway.process.pid), len(requests) * batch_events
    answered = send_all(gateway.port, requests, connections)
    cpu_us = (cpu_seconds(gateway.process.pid) - before) / events * 1e6
    cuts = statistics.quantiles(answered.latencies_s, n=100, method="inclusive")
    return (
        f"{events / answered.seconds:9,.0f} events/s  {cpu_us:6.1f} us CPU/event"
        f"  p50 {cuts[49] * 1e3:6.1f} ms  p99 {cuts[98] * 1e3:6.1f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--log", choices=["sqlite", "kafka"], default="sqlite")
    parser.add_argument("--bootstrap-servers", help="a running broker; required with --log kafka")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--batch-events", type=int, default=100)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument(
        "--sessions", type=int, default=0, help="of so many clients; 0: events with ids alone"
    )
    args = parser.parse_args()
    env = {"GATEWAY_LOG": args.log, "GATEWAY_LOGGING_LEVEL": "warning"}
    if args.log == "kafka":
        env |= {
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": args.bootstrap_servers,
            "GATEWAY_TOPIC": f"bench-{uuid.uuid4().hex[:8]}",
        }
    counts = (WARM_UP_BATCHES, args.batches)
    if args.sessions:
        clients = SessionWorkload(args.sessions)
        warm_up, new = (clients.requests(count, args.batch_events) for count in counts)
    else:
        warm_up, new = (list(map(request, make_bodies(count, args.batch_events))) for count in counts)
    with tempfile.TemporaryDirectory() as folder, Gateway(Path(folder), env) as gateway:
        measure(gateway, warm_up, args.batch_events, args.connections)
        for name in ("new", "again"):
            print(f"{name:6}", measure(gateway, new, args.batch_events, args.connections), flush=True)


if __name__ == "__main__":
    main()
