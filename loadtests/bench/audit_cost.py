"""
What an audit costs beside a bare count of the same records: CPU of this process, the JVM and its workers.

    .venv/bin/python -m loadtests.bench.audit_cost [--records 200000] [--rounds 3]

Starts a Kafka of its own, fills a topic, and archives it as Parquet. Everything runs in one warm process, in
turn; of each the round that cost least counts. Compare within one run: the machine is never the same.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from loadtests.bench.spark_jobs import CHUNK_RECORDS, KEPT, PARTITIONS, bench_event
from pipeline.audit import checks, evaluation
from pipeline.audit.checks import BEFORE_FIRST
from pipeline.audit.columns import read_with_changes, read_with_stored
from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.proof import Known, prove, prove_locally
from pipeline.runtime.session import create_session
from pipeline.sources.extent import ranges_of
from pipeline.sources.local import open_locally
from pipeline.sources.records import KafkaSource, LakeSource, Selection, read_records
from pipeline.transforms.clean_topic import archived
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.records import RecordMaker, fill_topic

KNOWN = Known(PARTITIONS, dict.fromkeys(range(PARTITIONS), BEFORE_FIRST), {})
ALL = Selection()


def cpu_seconds() -> float:
    """Return the CPU of this process and all below it, ended ones included."""
    me = psutil.Process()
    total = time.process_time()
    for process in me.children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def count(records: DataFrame) -> None:
    """Count the records, and read their values."""
    assert records.selectExpr("count(value)").collect()


def proof(records: DataFrame) -> None:
    """Prove the records, as an audit of clean ones does."""
    assert prove(records, KNOWN) is not None


def each_check(records: DataFrame) -> None:
    """Run the checks in SQL, as an audit does that names something."""
    checked = checks.check_records(records, PARTITIONS).persist(StorageLevel.DISK_ONLY)
    summaries, _ = evaluation.summarize(checked, KNOWN.preceding, {})
    assert not evaluation.find_faults(checked, summaries, KNOWN.preceding)
    own = checks.with_earlier_keys(checked, None)
    assert not evaluation.find_repeats(own, None, DedupeBounds())
    checked.unpersist()


def variants(
    spark: SparkSession, topic: KafkaSource, archive: LakeSource
) -> dict[str, tuple[str, Callable[[], None]]]:
    """Return what is measured: by name, what it is compared with, and how it runs."""

    def locally(*, compares: bool) -> None:
        local = open_locally(archive, {})
        assert local is not None
        assert prove_locally(local.batches({}, ALL, compares=compares), KNOWN) is not None

    def topic_locally() -> None:
        ranges = ranges_of(topic, ALL) or {}
        local = open_locally(topic, ranges)
        assert local is not None
        assert prove_locally(local.batches(ranges, ALL, compares=False), KNOWN) is not None

    return {
        "count, Kafka": ("count, Kafka", lambda: count(read_records(spark, topic, ALL))),
        "proof, Kafka": ("count, Kafka", lambda: proof(read_records(spark, topic, ALL))),
        "proof, Kafka, local": ("count, Kafka", topic_locally),
        "checks, Kafka": ("count, Kafka", lambda: each_check(read_records(spark, topic, ALL))),
        "checks, archive": ("checks, archive", lambda: each_check(read_with_changes(spark, archive, ALL))),
        "proof, archive": ("checks, archive", lambda: proof(read_with_stored(spark, archive, ALL))),
        "proof, archive, --shallow": ("checks, archive", lambda: proof(read_records(spark, archive, ALL))),
        "proof, archive, local": ("checks, archive", lambda: locally(compares=True)),
        "proof, archive, local, --shallow": ("checks, archive", lambda: locally(compares=False)),
    }


async def fill(servers: str, records: int) -> None:
    """Fill the topic with what a gateway would leave there."""
    await create_topic(servers, "clean", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS)
    for first in range(0, records, CHUNK_RECORDS):
        chunk = range(first, min(records, first + CHUNK_RECORDS))
        await fill_topic(servers, "clean", maker.lanes(bench_event(maker, n) for n in chunk))


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    records: int = options.records
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        asyncio.run(fill(broker.bootstrap_servers, records))
        topic = KafkaSource(broker.bootstrap_servers, "clean")
        archive = LakeSource("parquet", f"{name}/archive")
        spark = create_session("bench", formats=topic.formats)
        rows = read_records(spark, topic, ALL).transform(archived)
        rows.write.partitionBy("dt", "hr").parquet(archive.path)
        measured = variants(spark, topic, archive)
        least = dict.fromkeys(measured, float("inf"))
        for _ in range(options.rounds):
            for what, (_, run) in measured.items():
                before = cpu_seconds()
                run()
                least[what] = min(least[what], cpu_seconds() - before)
        spark.stop()
    print(f"| {records:,} records | CPU-seconds | microseconds a record | share |\n|---|---|---|---|")
    for what, (base, _) in measured.items():
        share = least[base] / least[what] if "Kafka" in what else least[what] / least[base]
        print(f"| {what} | {least[what]:.2f} | {least[what] / records * 1e6:.1f} | {share:.2f} |")
    print("Share: over Kafka of the rate of a count, over the archive of the cost of the checks.")


if __name__ == "__main__":
    main()
