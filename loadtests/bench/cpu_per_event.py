"""
What an event costs: CPU of the gateway's process, for new events and for the same ones again.

    .venv/bin/python -m loadtests.bench.cpu_per_event [--log kafka --bootstrap-servers HOST:PORT]

Starts a gateway of its own on loopback, sends batches over keep-alive connections, and reads the
process's CPU time from /proc. Absolute times depend on the machine; compare within one run.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson

from tests.support.gateway import Gateway

EVENT_PADDING_BYTES = 380  # makes an event of about 740 bytes
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """One run of all batches."""

    events: int
    seconds: float
    cpu_seconds: float
    latencies_s: list[float]

    def __str__(self) -> str:
        rate = self.events / self.seconds
        cpu_us = self.cpu_seconds / self.events * 1e6
        p50, p99 = statistics.median(self.latencies_s), statistics.quantiles(self.latencies_s, n=100)[98]
        return (
            f"{rate:9,.0f} events/s  {cpu_us:6.1f} us CPU/event"
            f"  p50 {p50 * 1e3:6.1f} ms  p99 {p99 * 1e3:6.1f} ms"
        )


def make_bodies(batches: int, batch_events: int) -> list[bytes]:
    """Return batches of events that were never sent before, as a Segment SDK would build them."""
    return [
        orjson.dumps({"batch": [_event() for _ in range(batch_events)], "sentAt": "2026-01-01T00:00:00.000Z"})
        for _ in range(batches)
    ]


def _event() -> dict[str, object]:
    return {
        "messageId": str(uuid.uuid4()),
        "type": "track",
        "event": "Order Completed",
        "userId": "user-4711",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "context": {"library": {"name": "bench", "version": "1"}, "ip": "127.0.0.1"},
        "properties": {"value": 12.5, "currency": "EUR", "padding": "x" * EVENT_PADDING_BYTES},
        "integrations": {},
    }


async def send_all(url: str, bodies: list[bytes], connections: int) -> list[float]:
    """Post every body once and return how long each answer took."""
    waiting, latencies = iter(bodies), list[float]()
    await asyncio.gather(*(_send(url, waiting, latencies) for _ in range(connections)))
    return latencies


async def _send(url: str, bodies: Iterator[bytes], latencies: list[float]) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    auth = b64encode(b"bench:")
    for body in bodies:
        began = time.perf_counter()
        head = (
            b"POST /v1/batch HTTP/1.1\r\nHost: bench\r\nAuthorization: Basic %b\r\nContent-Length: %d\r\n\r\n"
        )
        writer.write(head % (auth, len(body)) + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - began)
    writer.close()


def measure(gateway: Gateway, bodies: list[bytes], batch_events: int, connections: int) -> Measured:
    """Send all bodies and return what it cost the gateway."""
    cpu_before, began = _cpu_seconds(gateway.process.pid), time.perf_counter()
    latencies = asyncio.run(send_all(gateway.url, bodies, connections))
    seconds = time.perf_counter() - began
    return Measured(
        len(bodies) * batch_events, seconds, _cpu_seconds(gateway.process.pid) - cpu_before, latencies
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--log", choices=["sqlite", "kafka"], default="sqlite")
    parser.add_argument("--bootstrap-servers", help="a running broker; required with --log kafka")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--batch-events", type=int, default=100)
    parser.add_argument("--connections", type=int, default=16)
    args = parser.parse_args()
    env = {"GATEWAY_LOG": args.log, "GATEWAY_LOGGING_LEVEL": "warning"}
    if args.log == "kafka":
        env |= {
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": args.bootstrap_servers,
            "GATEWAY_TOPIC": f"bench-{uuid.uuid4().hex[:8]}",
        }
    bodies = make_bodies(args.batches, args.batch_events)
    print(
        f"{args.log}, batches of {args.batch_events} events, {len(bodies[0])} bytes each, "
        f"{args.connections} connections"
    )
    with tempfile.TemporaryDirectory() as folder, Gateway(Path(folder), env) as gateway:
        measure(gateway, make_bodies(50, args.batch_events), args.batch_events, args.connections)
        for name in ("new", "again"):
            print(f"{name:6}", measure(gateway, bodies, args.batch_events, args.connections), flush=True)


if __name__ == "__main__":
    main()
