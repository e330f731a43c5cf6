"""Sends batches of several write keys at an even pace, and times the answers."""

import asyncio
import statistics
import time
from collections.abc import Sequence

from app.cli.load.connection import Connection, request
from loadtests.bench.workload import make_bodies
from tests.support.processes import HOST

CONNECTIONS, REQUESTS_PER_S, BATCH_EVENTS = 6, 60.0, 20


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile."""
    return statistics.quantiles(values, n=100)[percent - 1]


async def send_steadily(
    port: int, seconds: float, keys: Sequence[str], requests_per_s: float = REQUESTS_PER_S
) -> list[float]:
    """Send batches of new events at a steady rate; return the latency of each answer."""
    latencies: list[float] = []
    pause_s = CONNECTIONS / requests_per_s
    waiting = iter(make_bodies(round(seconds * requests_per_s) + 2 * CONNECTIONS, BATCH_EVENTS))

    async def send(number: int) -> None:
        connection = await Connection.open(f"http://{HOST}:{port}")
        due = time.perf_counter() + pause_s * number / CONNECTIONS
        end = time.perf_counter() + seconds
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            answer = await connection.exchange(request(next(waiting), key=keys[number % len(keys)]))
            assert answer.status == 200, answer.status
            latencies.append(time.perf_counter() - began)
            due += pause_s
        connection.close()

    await asyncio.gather(*map(send, range(CONNECTIONS)))
    return latencies
