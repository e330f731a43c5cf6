"""
The effect of many idle and slow connections on other clients: their latency with and without them.

    .venv/bin/python -m loadtests.bench.idle_crowd [--idle 10000] [--slow 500]

The connections are in a process of their own. Idle ones have sent one request; slow ones send a body of 8 MB
at one byte a second, and reconnect when they are closed. Fewer are opened if the limit of open files is
lower.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import statistics
import tempfile
from multiprocessing.synchronize import Event
from pathlib import Path

from loadtests.bench.steady import percentile, send_steadily
from loadtests.bench.usage import rss_mib
from tests.support.gateway import Gateway
from tests.support.processes import HOST

OPEN_AT_ONCE = 200
SLOW_HEAD = b"POST /v1/batch?writeKey=slow HTTP/1.1\r\nHost: bench\r\nContent-Length: 8000000\r\n\r\n"


def crowd(port: int, idle: int, slow: int, is_there: Event, is_over: Event) -> None:
    """Keep connections open until a signal."""
    asyncio.run(_crowd(port, idle, slow, is_there, is_over))


async def _crowd(port: int, idle: int, slow: int, is_there: Event, is_over: Event) -> None:
    gate = asyncio.Semaphore(OPEN_AT_ONCE)
    writers = await asyncio.gather(*(_open_idle(port, gate) for _ in range(idle)))
    tasks = [asyncio.create_task(_drip(port)) for _ in range(slow)]
    await asyncio.sleep(2)
    is_there.set()
    while not is_over.is_set():  # noqa: ASYNC110 - another process sets it
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for writer in writers:
        writer.close()


async def _open_idle(port: int, gate: asyncio.Semaphore) -> asyncio.StreamWriter:
    async with gate:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /idle HTTP/1.1\r\nHost: bench\r\n\r\n")
        await reader.readuntil(b"}")
        return writer


async def _drip(port: int) -> None:
    while True:
        with contextlib.suppress(ConnectionError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.write(SLOW_HEAD)
            while not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=8, help="of one phase")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle = args.idle if hard == resource.RLIM_INFINITY else min(args.idle, hard - args.slow - 500)
    measured: dict[bool, list[list[float]]] = {False: [], True: []}
    env = {"GATEWAY_LOGGING_LEVEL": "warning"}
    with tempfile.TemporaryDirectory() as folder, Gateway(Path(folder), env) as gateway:
        asyncio.run(send_steadily(gateway.port, 2, ["a"]))
        for _ in range(args.rounds):
            for is_crowded in (False, True):
                latencies = _phase(gateway, args.seconds, idle if is_crowded else 0, args.slow)
                measured[is_crowded].append(latencies)
    for percent in (50, 99):
        alone, crowded = ([percentile(run, percent) for run in measured[kind]] for kind in (False, True))
        print(
            f"p{percent} beside the crowd and alone: ratio of the medians "
            f"{statistics.median(crowded) / statistics.median(alone):.2f}, "
            f"of the least disturbed phases {min(crowded) / min(alone):.2f}"
        )


def _phase(gateway: Gateway, seconds: float, idle: int, slow: int) -> list[float]:
    """Measure the healthy clients, beside a crowd if there is to be one."""
    is_there, is_over = multiprocessing.Event(), multiprocessing.Event()
    others = multiprocessing.Process(target=crowd, args=(gateway.port, idle, slow, is_there, is_over))
    if idle:
        others.start()
        is_there.wait()
    connections = gateway.stats()["connections"]
    latencies = asyncio.run(send_steadily(gateway.port, seconds, ["a", "b", "c"]))
    memory_mib = rss_mib(gateway.process.pid)
    print(
        f"{connections['open']:6} connections ({connections['idle']} idle)  RSS {memory_mib:4.0f} MiB"
        f"  p50 {percentile(latencies, 50) * 1e3:6.2f} ms  p99 {percentile(latencies, 99) * 1e3:7.2f} ms",
        flush=True,
    )
    if idle:
        is_over.set()
        others.join()
    return latencies


if __name__ == "__main__":
    main()
