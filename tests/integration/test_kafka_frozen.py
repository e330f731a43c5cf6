"""Claim: of three brokers, one that stands still costs its partitions little more than an election."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from dedupe.model.errors import GatewayError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from tests.contract.log_contract import read_all
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

TOPIC = "frozen"
PARTITIONS = 3
PROPERTIES = {
    "transaction.state.log.replication.factor": "3",
    "min.insync.replicas": "2",
}
REQUEST_TIMEOUT_S = 2 * PATIENCE_S
"""Whoever waits for it instead of an election, which takes 3 s, waits for too long."""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[KafkaBroker]]:
    """Three; the first one is the controller."""
    with ExitStack() as running:
        first = running.enter_context(KafkaBroker(tmp_path / "1", properties=PROPERTIES))
        others = [first.joined_by(tmp_path / f"{number}", node_id=number) for number in (2, 3)]
        with ThreadPoolExecutor() as threads:  # they wait for their JVMs
            yield [first, *threads.map(running.enter_context, others)]


@pytest.fixture
async def store(brokers: list[KafkaBroker]) -> AsyncIterator[KafkaStore]:
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    store = await KafkaStore.open(kafka_config(servers, request_timeout_s=REQUEST_TIMEOUT_S))
    yield store
    await store.close()


class Owner:
    """Appends to one partition without an end, as a lane does."""

    def __init__(self, log: KafkaLog) -> None:
        self.log = log
        self.keys: list[str] = []

    async def run(self) -> None:
        """Fence and append until cancelled."""
        while True:
            try:
                await self.log.fence()
                while True:
                    await self._append()
            except GatewayError:
                await asyncio.sleep(0.2)

    async def _append(self) -> None:
        key = f"{len(self.keys)}"
        await self.log.append([NewRecord(time.time_ns() // 1_000_000, key.encode(), b"value", [])])
        self.keys.append(key)
        await asyncio.sleep(0.02)

    async def until_appended(self, records: int) -> None:
        """Wait for so many more records."""
        wanted = len(self.keys) + records
        async with asyncio.timeout(PATIENCE_S):
            while len(self.keys) < wanted:
                await asyncio.sleep(0.05)


async def test_broker_that_stands_still_costs_an_election(
    brokers: list[KafkaBroker], store: KafkaStore
) -> None:
    await create_topic(
        brokers[0].bootstrap_servers, TOPIC, partitions=PARTITIONS, replication_factor=len(brokers)
    )
    owners = [Owner(store.partition_log(TOPIC, number)) for number in range(PARTITIONS)]
    running = [asyncio.ensure_future(owner.run()) for owner in owners]
    await asyncio.gather(*(owner.until_appended(10) for owner in owners))
    leaders = [await store.cluster.leader_of(TopicPartition(TOPIC, number)) for number in range(PARTITIONS)]
    frozen = next(broker for broker in brokers[1:] if broker.port in {leader.port for leader in leaders})

    frozen.freeze()
    try:
        await asyncio.gather(*(owner.until_appended(20) for owner in owners))
    finally:
        frozen.thaw()

    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for owner in owners:
        await owner.log.fence()
        _, end = await owner.log.bounds()
        stored = [record.key.decode() for record in await read_all(owner.log, 0, end)]
        assert set(owner.keys) <= set(stored)
        await owner.log.close()
