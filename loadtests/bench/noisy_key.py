"""
What a noisy key costs the others: their latency beside a flood, compared with their latency alone.

    .venv/bin/python -m loadtests.bench.noisy_key [--unlimited --connections 64]

Three keys without limits send batches at a steady pace; then a fourth one, whose quota is small or, with
--unlimited, who has none either, sends as fast as its connections carry, from a process of its own that
heeds no Retry-After. Both phases are run several times in turn on one gateway, and the ratio of the
medians is what counts.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from app.cli.load.connection import Connection, request
from loadtests.bench.steady import BATCH_EVENTS, percentile, send_steadily
from loadtests.bench.workload import make_bodies
from tests.support.gateway import Gateway
from tests.support.processes import HOST

QUIET_KEYS = ("quiet-0", "quiet-1", "quiet-2")
KEYS = """
- {key: quiet-0, source: a}
- {key: quiet-1, source: b}
- {key: quiet-2, source: c}
- {key: noisy, source: d, quotas: {events: 400, burst: 1s}}
- {key: unlimited, source: e}
"""


class Noise(NamedTuple):
    """Who floods."""

    key: str
    connections: int
    batch_events: int


def flood(port: int, noise: Noise, seconds: float, statuses: "multiprocessing.Queue[Counter[int]]") -> None:
    """Send with the noisy key as fast as it goes, in a process of its own."""
    counted: Counter[int] = Counter()
    message = request(make_bodies(1, noise.batch_events)[0], key=noise.key)

    async def send() -> None:
        connection = await Connection.open(f"http://{HOST}:{port}")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            counted[(await connection.exchange(message)).status] += 1
        connection.close()

    async def run() -> None:
        await asyncio.gather(*(send() for _ in range(noise.connections)))

    asyncio.run(run())
    statuses.put(counted)


def measure(gateway: Gateway, seconds: float, noise: Noise | None) -> tuple[list[float], Counter[int]]:
    """Run one phase; return the quiet keys' latencies and the noisy key's answers."""
    statuses: multiprocessing.Queue[Counter[int]] = multiprocessing.Queue()
    if noise is None:
        return asyncio.run(send_steadily(gateway.port, seconds, QUIET_KEYS)), Counter()
    sender = multiprocessing.Process(target=flood, args=(gateway.port, noise, seconds + 1, statuses))
    sender.start()
    time.sleep(1)  # its burst is used up
    latencies = asyncio.run(send_steadily(gateway.port, seconds, QUIET_KEYS))
    counted = statuses.get()
    sender.join()
    return latencies, counted


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--seconds", type=float, default=8, help="of one phase")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unlimited", action="store_true", help="the noisy key has no quota")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--batch-events", type=int, default=BATCH_EVENTS)
    parser.add_argument("--penalty", type=float, default=0.5, help="seconds that a 429 is held back")
    args = parser.parse_args()
    noise = Noise("unlimited" if args.unlimited else "noisy", args.connections, args.batch_events)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text(KEYS)
        env = {"GATEWAY_WRITE_KEYS_FILE": str(keys), "GATEWAY_LOGGING_LEVEL": "warning"}
        constants = {"app.round:DELAY_S": args.penalty}
        with Gateway(Path(folder) / "gateway", env, constants=constants) as gateway:
            measure(gateway, 2, None)
            medians: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(args.rounds):
                for is_noisy in (False, True):
                    latencies, told = measure(gateway, args.seconds, noise if is_noisy else None)
                    p50, p99 = statistics.median(latencies), percentile(latencies, 99)
                    medians[is_noisy].append(p50)
                    name = "beside the flood" if is_noisy else "alone"
                    answers = f"  noisy key: {dict(told)}" if is_noisy else ""
                    print(f"{name:17} p50 {p50 * 1e3:6.2f} ms  p99 {p99 * 1e3:7.2f} ms{answers}", flush=True)
    ratio = statistics.median(medians[True]) / statistics.median(medians[False])
    print(f"ratio of the medians: {ratio:.2f}")


if __name__ == "__main__":
    main()
