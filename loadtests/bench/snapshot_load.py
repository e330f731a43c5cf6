"""
What snapshots cost a gateway under load: latency, CPU, bytes sent and memory.

    .venv/bin/python -m loadtests.bench.snapshot_load [--rounds 8]

One gateway on a private Kafka answers 1,500 requests in each round of a minute, at an even pace; in every
second round each of its lanes is copied once meanwhile, one after the other, as its own snapshotter does. The
bucket is gofakes3, a server of S3 on loopback. Then eight lanes are copied at once in one process, and
restored at once, and its memory is told.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import orjson

from app.cli.load.connection import Connection, request
from dedupe.model.clock import SystemClock
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.snapshots.bucket import Bucket
from loadtests.bench.index_open import fill, identity_of
from loadtests.bench.load import send_all
from loadtests.bench.steady import BATCH_EVENTS, percentile, send_steadily
from loadtests.bench.usage import cpu_seconds
from loadtests.bench.workload import make_bodies
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker
from tests.support.processes import HOST
from tests.support.s3_stores import BUCKET, s3_environment, s3_store

LANES = 8
REQUESTS, ROUND_S = 1_500, 60.0
FILLED_BATCH = 100
START_S = 300.0  # on a machine that does other work
MIB = 1024 * 1024


class Round(NamedTuple):
    """One round."""

    p50_ms: float
    p99_ms: float
    cpu_us: float  # an event
    sent_bytes: int


async def measure(gateway: Gateway, *, copies: bool) -> Round:
    """Send the requests of one round."""
    pid = gateway.process.pid
    before = cpu_seconds(pid)
    copying = asyncio.create_task(copy_lanes(gateway, ROUND_S)) if copies else None
    latencies = await send_steadily(gateway.port, ROUND_S, ["bench"], REQUESTS / ROUND_S)
    sent = 0 if copying is None else await copying
    cpu_us = (cpu_seconds(pid) - before) / len(latencies) / BATCH_EVENTS * 1e6
    return Round(percentile(latencies, 50) * 1e3, percentile(latencies, 99) * 1e3, cpu_us, sent)


async def copy_lanes(gateway: Gateway, seconds: float) -> int:
    """Have each lane copied once within the time; return how many bytes were sent."""
    host, sent = f"{HOST}:{gateway.admin_port}", 0
    connection = await Connection.open(f"http://{host}")
    for lane in range(LANES):
        await asyncio.sleep(seconds / LANES / 2)
        path = f"/admin/v1/snapshots/{lane}".encode()
        answer = await connection.exchange(request(b"", path=path, host=host))
        assert answer.status == 200, answer.body
        sent += orjson.loads(answer.body)["sent_bytes"]
    connection.close()
    return sent


def measure_load(args: argparse.Namespace, folder: Path, servers: str, port: int) -> None:
    """Print each round, and the medians."""
    env = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
        "GATEWAY_PARTITIONS": str(LANES),
        "GATEWAY_LOGGING_LEVEL": "warning",
        "GATEWAY_SNAPSHOTS_URL": f"s3://{BUCKET}/load",
        "GATEWAY_SNAPSHOTS_INTERVAL": "1d",
        **s3_environment(port),
    }
    rounds: dict[bool, list[Round]] = {False: [], True: []}
    with ExitStack() as stack:
        gateway = Gateway(folder / "gateway", env)
        stack.callback(gateway.stop)
        gateway.start(wait=False)
        gateway.wait_until_ready(START_S)
        filled = list(map(request, make_bodies(args.filled // FILLED_BATCH, FILLED_BATCH)))
        send_all(gateway.port, filled, 8)
        asyncio.run(copy_lanes(gateway, 1))
        for number in range(args.rounds):
            for copies in (False, True) if number % 2 else (True, False):
                told = asyncio.run(measure(gateway, copies=copies))
                rounds[copies].append(told)
                print(
                    f"{'with' if copies else 'without':8} {told}  load {os.getloadavg()[0]:.1f}", flush=True
                )
        print(f"peak memory {peak_mib(gateway.process.pid):.0f} MiB")
    events = 2 * args.rounds * REQUESTS * BATCH_EVENTS
    for name in ("p50_ms", "p99_ms", "cpu_us"):
        without, copied = (
            statistics.median(getattr(each, name) for each in rounds[c]) for c in (False, True)
        )
        ratio = statistics.median(
            getattr(one, name) / getattr(other, name)
            for one, other in zip(rounds[True], rounds[False], strict=True)
        )
        print(f"{name}: {without:.2f} without, {copied:.2f} with snapshots; median of ratios {ratio:.2f}")
    print(f"{sum(each.sent_bytes for each in rounds[True]) / events:.1f} bytes sent an event")


async def measure_memory(args: argparse.Namespace, folder: Path) -> None:
    """Copy eight lanes at once, then restore them at once; print the peaks of this process's memory."""
    store = RocksStore(folder / "index", lanes=LANES, memory_bytes=512 * MIB, keys_max=LANES * args.keys)
    snapshots = IndexSnapshots(
        Bucket(f"s3://{BUCKET}/memory"), store, secret=b"x" * 16, worker="bench", clock=SystemClock()
    )
    identities = [identity_of(lane, LANES) for lane in range(LANES)]
    indexes = [store.open(identity) for identity in identities]
    for index in indexes:
        fill(index, args.keys)
    base = begin_peak()
    made = await asyncio.gather(
        *(
            snapshots.make(identity, index, 0, asyncio.Lock())
            for identity, index in zip(identities, indexes, strict=True)
        )
    )
    sent = sum(each.sent_bytes for each in made) / MIB
    print(f"{LANES} lanes copied at once, {sent:,.0f} MiB: {base:.0f} MiB before, peak {peak_mib():.0f} MiB")
    for identity, index in zip(identities, indexes, strict=True):
        index.close()
        await store.prepare(identity)
        store.discard(identity)
        await store.prepare(identity)
    base = begin_peak()
    await asyncio.gather(*(snapshots.restore(each.manifest) for each in made))
    print(f"{LANES} lanes restored at once: {base:.0f} MiB before, peak {peak_mib():.0f} MiB")
    store.close()


def begin_peak() -> float:
    """Forget the peak of this process's memory; return what it has now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def peak_mib(pid: int | None = None) -> float:
    """Return the peak of a process's resident memory, in MiB."""
    status = Path(f"/proc/{pid or 'self'}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--filled", type=int, default=400_000, help="events that are stored before")
    parser.add_argument("--keys", type=int, default=2_000_000, help="in each of eight lanes, for the memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-snapshot-load-") as name:
        folder = Path(name)
        with s3_store("gofakes3", folder / "s3.log") as port:
            with KafkaBroker(folder / "kafka") as broker:
                measure_load(args, folder, broker.bootstrap_servers, port)
            os.environ |= s3_environment(port)
            asyncio.run(measure_memory(args, folder))


if __name__ == "__main__":
    main()
