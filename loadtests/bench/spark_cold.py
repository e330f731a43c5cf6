"""
What a Spark job costs from a standing start: CPU-seconds of a fresh process with its JVM.

    .venv/bin/python -m loadtests.bench.spark_cold [--records 1000000]

Starts a Kafka of its own with two topics of the same kind of events, one a thousand times as long. Each job
runs as `python -m pipeline` over each, and what can be repeated three times, of which the median counts; from
the two lengths follow what the start costs and what each row more does.
Bare counts of the same run stand beside them, since the machine is never the same: compare within one run.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dedupe.model.types import NewRecord
from loadtests.bench.spark_jobs import CHUNK_RECORDS, KEPT, PARTITIONS, bench_event
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.records import BATCH_RECORDS, RecordMaker, fill_topic

SHORT = 1_000  # times shorter
ROUNDS = 3
NEW = 100  # of so many records one is new to an incremental audit
EVENTS_A_DAY = 1_000_000_000

COUNT = """
import sys
from pipeline.runtime.session import create_session
from pipeline.sources.records import Selection, parse_source, read_records
source = parse_source(sys.argv[1])
spark = create_session("count", formats=source.formats)
records = read_records(spark, source, Selection())
print(records.selectExpr("count(value)").first()[0])
"""

COUNTED = """
import ctypes, os, resource, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
try:  # the JVM outlives its driver for a moment, and becomes a child of this process then
    while True:
        os.waitpid(-1, 0)
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
sys.exit(code)
"""


MAKERS: dict[str, RecordMaker] = {}
"""By topic; each continues at its position."""


class Cost(NamedTuple):
    """What one kind of run costs."""

    name: str
    short_s: float
    long_s: float
    short_rows: int
    long_rows: int

    def __str__(self) -> str:
        marginal_s = (self.long_s - self.short_s) / (self.long_rows - self.short_rows)
        start_s = self.short_s - self.short_rows * marginal_s
        cold = self.long_rows / self.long_s
        return f"| {self.name} | {start_s:.1f} | {cold:,.0f} | {1 / marginal_s:,.0f} |"


def cpu_seconds_of(command: Sequence[object]) -> float:
    """Run a job to its end, and return the CPU of its processes, JVM included."""
    run = [sys.executable, "-c", COUNTED, *(str(word) for word in command)]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    return float(done.stdout)


def measure(
    name: str, commands: Sequence[Sequence[object]], rows: tuple[int, int], *, rounds: int = ROUNDS
) -> None:
    """Print a line of the table."""
    taken = [[cpu_seconds_of(command) for command in commands] for _ in range(rounds)]
    short_s, long_s = map(statistics.median, zip(*taken, strict=True))
    print(Cost(name, short_s, long_s, *rows), flush=True)


def measure_all(servers: str, folder: Path, rows: tuple[int, int]) -> None:
    """Print the table."""
    topics = [f"kafka://{servers}/{name}" for name in ("short", "long")]
    outs = [folder / "archive-short", folder / "archive-long"]
    lakes = [f"parquet://{out}" for out in outs]
    memories = [folder / "memory-short", folder / "memory-long"]
    told = ("--partitions", PARTITIONS)

    def both(
        head: Sequence[object], sources: Sequence[object], *tails: Sequence[object]
    ) -> list[list[object]]:
        return [[*head, source, *(tails[n] if tails else ())] for n, source in enumerate(sources)]

    job = (sys.executable, "-m", "pipeline")
    audit, count = (*job, "audit", "--source"), (sys.executable, "-c", COUNT)
    archive = [("--out", out, "--format", "parquet", "--once") for out in outs]
    since_last = [("--since-last", memory) for memory in memories]
    print("| job | start, CPU-seconds | rows per CPU-second, cold | marginal |\n|---|---|---|---|")
    measure("bare count over Kafka", both(count, topics), rows)
    measure("audit over Kafka", both(audit, topics), rows)
    measure("archive, Parquet", both((*job, "archive", "--source"), topics, *archive), rows, rounds=1)
    measure("bare scan of the archive", both(count, lakes), rows)
    measure("audit over the archive", both(audit, lakes, told, told), rows)
    measure("first audit --since-last", both(audit, topics, *since_last), rows, rounds=1)
    asyncio.run(
        fill(servers, {name: n // NEW for name, n in zip(("short", "long"), rows, strict=True)}, rows)
    )
    again = [cpu_seconds_of(command) for command in both(audit, topics, *since_last)]
    print(f"\naudit --since-last of 1 % new rows: {again[0]:.1f} and {again[1]:.1f} CPU-seconds")
    stored = sum(path.stat().st_size for path in outs[1].rglob("*.parquet")) / rows[1]
    keys = sum(path.stat().st_size for path in memories[1].rglob("*.parquet")) / rows[1]
    day_gb = EVENTS_A_DAY / 1e9
    print(f"archive: {stored:.0f} bytes a record, {stored * day_gb:,.0f} GB for a billion events a day")
    print(f"keys of --since-last: {keys:.0f} bytes a record, {keys * day_gb:,.0f} GB likewise")


async def fill(servers: str, counts: dict[str, int], firsts: Sequence[int] = (0, 0)) -> None:
    """Append records to each topic."""
    for (name, count), begin in zip(counts.items(), firsts, strict=True):
        if begin == 0:
            await create_topic(servers, name, partitions=PARTITIONS, configs=KEPT)
        maker = MAKERS.setdefault(name, RecordMaker(PARTITIONS))
        for first in range(begin, begin + count, CHUNK_RECORDS):
            chunk = range(first, min(begin + count, first + CHUNK_RECORDS))
            lanes = maker.lanes(bench_event(maker, n) for n in chunk)
            await fill_topic(servers, name, {p: at_once(records) for p, records in lanes.items()})


def at_once(records: Sequence[NewRecord]) -> list[NewRecord]:
    """Return a lane's records with one time a transaction, as a gateway gives them."""
    return [
        record._replace(timestamp_ms=records[n - n % BATCH_RECORDS].timestamp_ms)
        for n, record in enumerate(records)
    ]


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--records", type=int, default=1_000_000)
    records: int = parser.parse_args().records
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        rows = (records // SHORT, records)
        asyncio.run(fill(broker.bootstrap_servers, dict(zip(("short", "long"), rows, strict=True))))
        print(f"{records:,} events of about 540 bytes, and {rows[0]:,}\n", flush=True)
        measure_all(broker.bootstrap_servers, Path(name), rows)


if __name__ == "__main__":
    main()
