"""
The instructions of an event, from its bytes on the wire to its answer, with the native module and without.

    .venv/bin/python -m loadtests.bench.instructions [--out instructions.md]

Valgrind counts them, so the other load of a machine does not matter. One connection sends requests one after
another to the protocol of the ingest port. Lanes, indexes on RocksDB and record batches are those of a
gateway, the log is the simulated one. What the kernel and the brokers do is left out.
"""

import argparse
import asyncio
import gc
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
import uvloop
from uvicorn.server import ServerState

from app.cli.load.connection import request
from app.cli.load.events import body
from app.http.client_address import TrustedProxies
from app.http.connections import Connections
from app.http.port import ConnectionLimits, Port
from app.http.problems import Problems
from app.http.protocol import EdgeProtocol
from app.http.request_metrics import RequestMetrics
from app.native_module import native_module
from dedupe.model.types import NewRecord, Offset
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.wire import ProducerIdAndEpoch
from loadtests.guard.cost import OFF, REQUIRED, ROOT, Cost, CostError, env_of, instructions_in
from loadtests.guard.workload import ingest_application
from tests.support.sim.sim_log import SimLog

REQUESTS = {100: (5, 20, 15), 1: (30, 180, 150)}
"""By the events of each: few and many new ones, whose difference counts, and how many are sent again."""

PRODUCER = ProducerIdAndEpoch(1, 0)
BATCH_BYTES_MAX = 2**22


class Wire(asyncio.Transport):
    """A transport whose other side takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.answered = asyncio.Event()

    def write(self, data: Any) -> None:
        assert data.startswith(b"HTTP/1.1 200 "), data
        self.answered.set()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def send(requests: Sequence[bytes]) -> None:
    """Send requests over one connection, each after the answer to the one before."""
    async with ingest_application() as (edge, memory):
        problems = Problems(retry_after_max=1, rng=random.Random(0))
        proxies, connections = TrustedProxies(()), Connections(connections_max=9)
        port = Port(ConnectionLimits(), connections, memory, proxies, problems, RequestMetrics(), edge)
        config = uvicorn.Config(edge, ws="none", lifespan="off", log_config=None, proxy_headers=False)
        config.load()
        wire = Wire()
        connection = EdgeProtocol(port=port, config=config, server_state=ServerState(), app_state={})
        connection.connection_made(wire)
        for each in requests:
            wire.answered.clear()
            connection.data_received(each)
            await wire.answered.wait()


def run(batch_events: int, new: int, again: int) -> None:
    """Run a gateway that also encodes its record batches."""
    module = native_module("required" if os.environ["GATEWAY_NATIVE"] == REQUIRED else "off")
    append = SimLog.append

    async def encode_and_append(log: SimLog, records: Sequence[NewRecord]) -> Offset:
        native = None if module is None else module.encode_records
        encode_batch(records, PRODUCER, 0, bytes_max=BATCH_BYTES_MAX, native=native)
        return await append(log, records)

    starts = range(0, new * batch_events, batch_events)
    requests = [request(body(range(first, first + batch_events))) for first in starts]
    gc.disable()
    with patch.object(SimLog, "append", encode_and_append):
        uvloop.run(send([*requests, *requests[:again]]))


def count(native: str, batch_events: int) -> Cost:
    """Return the instructions of an event. Raises CostError."""
    few, many, again = REQUESTS[batch_events]
    runs = ((few, 0), (many, 0), (many, again))
    base, new, both = (_count_of(native, batch_events, *each) for each in runs)
    return Cost((new - base) / (many - few) / batch_events, (both - new) / again / batch_events)


def _count_of(native: str, batch_events: int, new: int, again: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        counting = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        counting += [f"--log-file={log}", sys.executable, "-m", __spec__.name]
        counting += ["--run", *map(str, (batch_events, new, again))]
        done = subprocess.run(counting, cwd=ROOT, env=env_of(native), capture_output=True, check=False)
        if done.returncode != 0:
            raise CostError(done.stderr.decode(errors="replace"))
        return instructions_in(log.read_text())


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--out", type=Path, help="for the table")
    parser.add_argument(
        "--run", nargs=3, type=int, metavar=("EVENTS", "NEW", "AGAIN"), help="what is counted"
    )
    args = parser.parse_args()
    if args.run:
        run(*args.run)
        return
    cases = list(product(REQUESTS, (OFF, REQUIRED)))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        costs = dict(zip(cases, threads.map(lambda case: count(case[1], case[0]), cases), strict=True))
    lines = ["| events a request | | Python | native | ratio |", "|---|---|---|---|---|"]
    for batch_events, name in product(REQUESTS, Cost._fields):
        own, other = (getattr(costs[batch_events, native], name) for native in (REQUIRED, OFF))
        lines.append(f"| {batch_events} | {name} | {other:,.0f} | {own:,.0f} | {own / other:.2f} |")
    table = "\n".join(lines) + "\n"
    print(table)
    if args.out:
        args.out.write_text(table)


if __name__ == "__main__":
    main()
