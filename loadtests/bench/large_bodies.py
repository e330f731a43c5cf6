"""
The memory of many large bodies: the gateway's RSS while 1,000 clients send 8 MB each.

    .venv/bin/python -m loadtests.bench.large_bodies [--clients 1000] [--memory 256MiB]

All clients send a valid batch of the largest size at the same time, and read the answer. It checks that each
answer is 200, 503 or 429, and that the bodies never exceed the memory limit.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

import orjson

from app.cli.load.connection import Connection, request
from loadtests.bench.usage import rss_mib
from tests.support.gateway import Gateway

EVENTS = 20
BODY_BYTES = 8 * 1024 * 1024 - 10_000


def large_body() -> bytes:
    """Return a batch of events that fills a body."""
    padding = "x" * (BODY_BYTES // EVENTS - 100)
    events = [{"messageId": f"large-{number}", "event": "Large", "p": padding} for number in range(EVENTS)]
    return orjson.dumps({"batch": events})


async def send_all(gateway: Gateway, clients: int) -> tuple[Counter[int], float]:
    """Send from all clients at once; return their answers and the gateway's largest RSS meanwhile."""
    body = large_body()
    largest_mib = 0.0

    async def send(client: int) -> int:
        connection = await Connection.open(gateway.url)
        answer = await connection.exchange(request(body, key=f"key-{client}"))
        connection.close()
        return answer.status

    async def watch() -> None:
        nonlocal largest_mib
        while True:
            largest_mib = max(largest_mib, rss_mib(gateway.process.pid))
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    statuses = Counter(await asyncio.gather(*map(send, range(clients))))
    watching.cancel()
    return statuses, largest_mib


PATIENT = {"app.http.port:ConnectionLimits.head_timeout_s": 120}
"""Long, since one process sends for all clients."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--memory", default="256MiB", help="GATEWAY_BODY_MEMORY")
    args = parser.parse_args()
    env = {
        "GATEWAY_BODY_MEMORY": args.memory,
        "GATEWAY_LOGGING_LEVEL": "warning",
    }
    with tempfile.TemporaryDirectory() as folder, Gateway(Path(folder), env, constants=PATIENT) as gateway:
        before_mib, began = rss_mib(gateway.process.pid), time.perf_counter()
        statuses, largest_mib = asyncio.run(send_all(gateway, args.clients))
        memory = gateway.stats()["body_memory"]
        assert set(statuses) <= {200, 429, 503}, statuses
        assert memory["peak_bytes"] <= memory["limit_bytes"]
        print(
            f"{args.clients} clients, {BODY_BYTES:,} bytes each, budget {args.memory}: {dict(statuses)}"
            f" in {time.perf_counter() - began:.0f} s; bodies at most {memory['peak_bytes'] / 2**20:.0f} MiB;"
            f" RSS {before_mib:.0f} MiB before, at most {largest_mib:.0f} MiB"
        )


if __name__ == "__main__":
    main()
