"""
What the Spark jobs cost, beside what users would run instead of a gateway: rows per CPU-second of the JVM.

    .venv/bin/python -m loadtests.bench.spark_jobs [--records 1000000]

Starts a Kafka of its own and fills two topics with the same events: the clean one, as a gateway
leaves it, and a dirty one with retries in it. Everything runs in one Spark, one job after another,
each three times; the last run counts, since a cluster's executors are warm. Compare within one run.
"""

import argparse
import asyncio
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dedupe.model.types import Event, NewRecord
from pipeline.audit import checks, evaluation
from pipeline.audit.forgotten import DedupeBounds
from pipeline.runtime import options
from pipeline.runtime.session import create_session
from pipeline.runtime.streams import StreamPlan
from pipeline.schema import MINUTE_COUNTS
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.lake import FOLDERS
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sources.origin import origin_of
from pipeline.sources.records import KafkaSource, LakeSource, Selection, Source, read_records, stream_records
from pipeline.transforms.clean_topic import archived, per_minute
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.records import RecordMaker, fill_topic

PARTITIONS = 4
CHUNK_RECORDS = 50_000
RETRIES, LATE = 0.05, 0.005  # of the dirty topic: sent again; unique, but from a phone that was offline
LATE_MS = 30 * 3600 * 1000
WATERMARK = "24 hours"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
KEPT = {"retention.ms": "-1"}
OFFSETS_PER_BATCH = 250_000
SEED = 11


def _minute_counts(records: DataFrame) -> DataFrame:
    return per_minute(records).select(*MINUTE_COUNTS.names)


class Row(NamedTuple):
    """One line of the table."""

    name: str
    rows: int
    cpu_seconds: float
    remark: str = ""

    def __str__(self) -> str:
        return f"| {self.name} | {self.rows / self.cpu_seconds:,.0f} | {self.remark} |"


class Bench:
    """One Spark and what is measured in it."""

    def __init__(self, spark: SparkSession, records: int, folder: Path) -> None:
        self._spark, self._records, self._folder = spark, records, folder
        self._jvm = _java_child()

    def audit(self, source: Source) -> None:
        """The summary, which is all that an audit of a clean topic reads."""
        records = read_records(self._spark, source, Selection())
        checked = checks.check_records(records, PARTITIONS).persist(StorageLevel.DISK_ONLY)
        summaries, _ = evaluation.summarize(checked, {}, {})
        assert sum(summary.records for summary in summaries) == self._records
        assert not evaluation.find_faults(checked, summaries, {})
        assert not evaluation.find_repeats(checks.with_earlier_keys(checked, None), None, DedupeBounds())
        checked.unpersist()

    def archive(self, source: Source, run: int) -> None:
        """The archive job's stream."""
        out = self._folder / f"archive-{run}"
        self._store(source, out, SinkPlan(ParquetFolder(str(out), FOLDERS), archived))

    def minute_counts(self, source: Source, run: int) -> None:
        """The counting job's stream."""
        out = self._folder / f"counts-{run}"
        self._store(source, out, SinkPlan(ParquetFolder(str(out)), _minute_counts))

    def _store(self, source: Source, out: Path, output: SinkPlan) -> None:
        plan = StreamPlan("bench", source, f"{out}.checkpoint", True, options.INTERVAL, None)
        run_to_sink(self._spark, plan, origin_of(source), output, offsets_per_batch=OFFSETS_PER_BATCH)

    def pass_on(self, source: Source, run: int, *, dedupe: bool) -> StreamingQuery:
        """What users run instead: read, drop duplicates by id within a watermark, pass on."""
        stream: DataFrame = self._stream(source).select("key", "timestamp", "value")
        if dedupe:
            stream = stream.withWatermark("timestamp", WATERMARK).dropDuplicatesWithinWatermark(["key"])
        writer = stream.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / f"passed-{dedupe}-{run}")).start()
        query.awaitTermination()
        return query

    def measure(self, name: str, run: Callable[[int], str | None], rows: int | None = None) -> Row:
        """Run it three times, and return what the last run cost."""
        run(0)
        run(1)
        before = _cpu_seconds(self._jvm)
        remark = run(2)
        row = Row(name, rows or self._records, _cpu_seconds(self._jvm) - before, remark or "")
        print(row, flush=True)
        return row

    def _stream(self, source: Source) -> DataFrame:
        return stream_records(self._spark, source, job="bench", offsets_per_batch=OFFSETS_PER_BATCH)


def measure_all(bench: Bench, clean: Source, dirty: Source, archive: Source, dirty_rows: int) -> None:
    """Print the table."""

    def deduplicated(run: int) -> str:
        query = bench.pass_on(dirty, run, dedupe=True)
        states = [state for batch in query.recentProgress for state in batch.stateOperators]
        kept, late = states[-1], sum(state.numRowsDroppedByWatermark for state in states)
        return (
            f"{kept.numRowsTotal:,} keys of state, {kept.memoryUsedBytes / 1e6:,.0f} MB of memory; "
            f"{late:,} unique events dropped as late"
        )

    def passed_on(run: int) -> None:
        bench.pass_on(dirty, run, dedupe=False)

    print("| job | rows per CPU-second | remark |\n|---|---|---|")
    bench.measure("archive, Parquet", lambda run: bench.archive(clean, run))
    bench.measure("audit over Kafka", lambda _run: bench.audit(clean))
    bench.measure("audit over the archive", lambda _run: bench.audit(archive))
    bench.measure("minute_counts", lambda run: bench.minute_counts(clean, run))
    bench.measure("pass on as it is", passed_on, dirty_rows)
    bench.measure("dropDuplicatesWithinWatermark, 24 h", deduplicated, dirty_rows)


async def fill(servers: str, records: int) -> int:
    """Fill both topics and return how many records the dirty one has."""
    for name in ("clean", "dirty"):
        await create_topic(servers, name, partitions=PARTITIONS, configs=KEPT)
    maker, chance, dirty = RecordMaker(PARTITIONS), random.Random(SEED), 0
    for first in range(0, records, CHUNK_RECORDS):
        chunk = range(first, min(records, first + CHUNK_RECORDS))
        lanes = maker.lanes(bench_event(maker, n) for n in chunk)
        await fill_topic(servers, "clean", lanes)
        spoilt = {lane: list(_spoilt(lane_records, chance)) for lane, lane_records in lanes.items()}
        await fill_topic(servers, "dirty", spoilt)
        dirty += sum(map(len, spoilt.values()))
    return dirty


def _spoilt(records: list[NewRecord], chance: random.Random) -> Iterator[NewRecord]:
    for record in records:
        is_late = chance.random() < LATE
        yield record._replace(timestamp_ms=record.timestamp_ms - LATE_MS) if is_late else record
        if chance.random() < RETRIES:
            yield record


def _java_child() -> int:
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, check=True)
    return int(found.stdout.split()[-1])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def bench_event(maker: RecordMaker, number: int) -> Event:
    """Return the event of this number, the same in every run."""
    return maker.event(f"bench-{number:012}-{number * 7919 % 10**9:09}", more=real_event(number))


def real_event(number: int) -> dict[str, object]:
    """Return what a web shop's page sends, about 540 bytes with its id, and no two alike."""
    chance = random.Random(number)
    product, price = chance.randrange(5_000), chance.randrange(100, 90_000) / 100
    path = f"/c/{chance.choice(('shoes', 'garden', 'books', 'lamps'))}/p-{product}"
    return {
        "event": chance.choice(("Product Viewed", "Product Added", "Order Completed", "Search")),
        "anonymousId": f"{chance.getrandbits(128):032x}",
        "userId": f"u-{chance.randrange(2_000_000)}",
        "timestamp": f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.000Z",
        "context": {
            "ip": f"203.0.113.{chance.randrange(256)}",
            "userAgent": f"Mozilla/5.0 (X11; Linux x86_64) Firefox/{chance.randrange(100, 140)}.0",
            "locale": chance.choice(("de-DE", "en-GB", "fr-FR")),
            "library": {"name": "analytics.js", "version": "4.2.1"},
            "page": {"path": path, "url": f"https://shop.example{path}", "title": f"Product {product}"},
        },
        "properties": {"product_id": product, "price": price, "currency": "EUR", "position": number % 40},
    }


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--records", type=int, default=1_000_000)
    records: int = parser.parse_args().records
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        folder = Path(name)
        dirty_rows = asyncio.run(fill(broker.bootstrap_servers, records))
        print(f"{records:,} records of about 700 bytes, {dirty_rows:,} in the dirty topic\n", flush=True)
        clean, dirty = (KafkaSource(broker.bootstrap_servers, topic) for topic in ("clean", "dirty"))
        spark = create_session("bench", formats=frozenset({"kafka"}))
        archive = LakeSource("parquet", str(folder / "archive-2"))
        measure_all(Bench(spark, records, folder), clean, dirty, archive, dirty_rows)
        spark.stop()


if __name__ == "__main__":
    main()
