"""
`make demo`: exactly-once storage from end to end, without Kafka.

It starts a gateway on its embedded log, sends 100,000 events, drops some of its answers as a bad connection
would, sends some events again, and checks the log with the Spark jobs.
"""

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from app.cli.load.connection import Connection, request
from app.cli.load.events import body
from tests.support.gateway import Gateway

BATCH_EVENTS = 100
RETRIES = 0.05  # of the batches, sent again although they were answered
LOSS = 0.03  # of the answers
CONNECTIONS = 8
SEED = 7
RETRY_PAUSE_S = 0.05
SOURCES = ("web", "app")
SECRET = "the secret of the demonstration"


async def send(gateway: Gateway, events: int) -> tuple[int, int]:
    """Send every event until it is acknowledged; return the numbers of requests and of lost answers."""
    chance = random.Random(SEED)
    batches = [range(first, first + BATCH_EVENTS) for first in range(0, events, BATCH_EVENTS)]
    batches += chance.sample(batches, int(len(batches) * RETRIES))
    waiting = iter(batches)
    requests = await asyncio.gather(*(_send_all(gateway.url, waiting, chance) for _ in range(CONNECTIONS)))
    return sum(requests), sum(requests) - len(batches)


async def _send_all(url: str, batches: Iterator[range], chance: random.Random) -> int:
    """Post batches until none is left, each until it is acknowledged; return the number of requests."""
    requests = 0
    connection = await Connection.open(url)
    for numbers in batches:
        message = request(body(numbers), key=SOURCES[numbers.start // BATCH_EVENTS % len(SOURCES)])
        is_answered = False
        while not is_answered:
            requests += 1
            status = (await connection.exchange(message)).status
            assert status in (200, 429, 503), status
            is_answered = status == 200 and chance.random() >= LOSS
            await asyncio.sleep(0 if is_answered else RETRY_PAUSE_S)
    connection.close()
    return requests


def run_job(*arguments: object) -> int:
    """Run one Spark job as a user would, and return its exit code."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ python -m pipeline {' '.join(words)}", flush=True)
    environment = os.environ | {"GATEWAY_IDENTITY_SECRET": SECRET}
    return subprocess.run([sys.executable, "-m", "pipeline", *words], env=environment, check=False).returncode


def main() -> None:
    """Send, check, count, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="emptied first")
    args = parser.parse_args()
    folder: Path = args.folder
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    with Gateway(folder, {"GATEWAY_IDENTITY_SECRET": SECRET, "GATEWAY_LOGGING_LEVEL": "warning"}) as gateway:
        print(f"A gateway with an embedded log takes {args.events:,} events at {gateway.url} ...", flush=True)
        requests, lost = asyncio.run(send(gateway, args.events))
        totals = gateway.stats()["totals"]
        print(f"{requests:,} requests, {lost:,} of them without an answer and sent again.")
        print(f"It says: {totals['accepted']:,} accepted, {totals['duplicates']:,} duplicates.", flush=True)
        source, report, counts = f"log://{gateway.data}", folder / "report", folder / "minute_counts"
        verdict = run_job(
            *("audit", "--source", source, "--deep"),
            *("--stats", gateway.admin_url, "--report", report),
        )
        counted = run_job("minute_counts", "--source", source, "--to", f"parquet://{counts}", "--once")
    words = {0: "clean", 1: "VIOLATED", 2: "undecided"}
    print(f"\nVerdict: {words.get(verdict, verdict)}, in {time.monotonic() - began:.0f} s.")
    print(f"Report: {report / 'audit.html'}    Counts per minute: {counts}")
    is_whole = totals["accepted"] == args.events
    sys.exit(0 if verdict == counted == 0 and is_whole else 1)


if __name__ == "__main__":
    main()
