"""
Claim: while a topic on Kafka gets more partitions under load, and fewer again, whoever reads it counts each
id once: a consumer group, and a job that runs through it, without being told.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaConsumer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.sources.records import LakeSource, read_lake
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event
from tests.support.jobs import START_TIMEOUT_S, JobProcess

BEFORE, AFTER = 2, 4
METADATA_AGE_MS = 500
BATCH, PAUSE_S = 10, 0.2


@asynccontextmanager
async def read_by_a_group(bootstrap_servers: str, topic: str) -> AsyncIterator[Counter[str]]:
    """Yield the ids that a consumer group has read so far, of all partitions that it comes to know."""
    seen: Counter[str] = Counter()
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=f"{topic}-readers",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        metadata_max_age_ms=METADATA_AGE_MS,
    )
    await consumer.start()

    async def read() -> None:
        async for record in consumer:
            seen[(record.key or b"").decode()] += 1

    reading = asyncio.create_task(read())
    try:
        yield seen
    finally:
        reading.cancel()
        await consumer.stop()


class Load:
    """Posts events, each batch until it is answered 200, and then once more."""

    def __init__(self, gateway: Gateway) -> None:
        self.stored: set[str] = set()
        self._gateway = gateway
        self._is_over = False

    async def run(self) -> None:
        """Post until `end`."""
        async with httpx.AsyncClient(auth=AUTH, timeout=30) as client:
            while not self._is_over:
                events = [new_event() for _ in range(BATCH)]
                copies = 2
                while copies:
                    answer = await client.post(f"{self._gateway.url}/v1/events", json={"batch": events})
                    copies -= answer.status_code == httpx.codes.OK
                self.stored |= {event["messageId"] for event in events}
                await asyncio.sleep(PAUSE_S)

    def end(self) -> None:
        """End after the batch that is under way."""
        self._is_over = True

    async def more(self, count: int) -> None:
        """Wait until so many more events are stored."""
        wanted = len(self.stored) + count
        while len(self.stored) < wanted:
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_consumer_group_and_stream_count_each_id_once_through_growth_and_back(
    job: JobRunner, spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("growth", partitions=BEFORE, configs={"retention.ms": "691200000"})
    log = {"GATEWAY_LOG": "kafka", "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap}
    gateway = Gateway(tmp_path / "gateway", log | {"GATEWAY_TOPIC": name, "GATEWAY_PARTITIONS": str(BEFORE)})
    out, division = tmp_path / "events", tmp_path / "reshard.json"
    command: list[object] = ["archive", "--source", f"kafka://{kafka_bootstrap}/{name}", "--out", out]
    with gateway:
        stream = JobProcess(tmp_path, *command, "--interval", "1s")
        try:
            load = Load(gateway)
            async with read_by_a_group(kafka_bootstrap, name) as seen, asyncio.TaskGroup() as running:
                running.create_task(load.run())
                await load.more(BATCH)
                await asyncio.to_thread(stream.wait_for_batches, 1)
                assert out.exists(), stream.said
                for partitions in (AFTER, BEFORE):
                    plan = ("reshard", "plan", "--partitions", str(partitions), "--notice", "0", "--force")
                    done = await asyncio.to_thread(cli, gateway, *plan)
                    assert done.returncode == 0, done.stderr.decode()
                    await load.more(10 * BATCH)
                load.end()
                status = await asyncio.to_thread(cli, gateway, "reshard", "status", "--output", "json")
                division.write_bytes(status.stdout)
                deadline = time.monotonic() + START_TIMEOUT_S
                while not (seen.keys() >= load.stored and await asyncio.to_thread(added, spark, out)):
                    assert time.monotonic() < deadline, (len(seen), len(load.stored), stream.said)
                    await asyncio.sleep(0.2)
        finally:
            exit_code = stream.terminate()
    last = job(*command, "--once")  # goes on from checkpoint and ledger with all partitions

    once = Counter(load.stored)
    assert seen == once
    assert (exit_code, last.exit_code) == (0, 0), (stream.said, last)
    archived = read_lake(spark, LakeSource("delta", str(out))).select("message_id", "partition").collect()
    assert Counter(row["message_id"] for row in archived) == once
    assert {row["partition"] for row in archived} == set(range(AFTER))
    for source in (f"delta://{out}", f"kafka://{kafka_bootstrap}/{name}"):
        audited = job("audit", "--source", source, "--reshard", division, "--report", tmp_path)
        assert audited.exit_code == 0, audited.stdout


def added(spark: SparkSession, out: Path) -> bool:
    """Whether the archive has records of a partition that was added."""
    rows = read_lake(spark, LakeSource("delta", str(out)))
    return rows.where(F.col("partition") >= BEFORE).limit(1).count() > 0
