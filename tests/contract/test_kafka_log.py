"""KafkaLog keeps the contract, on a real broker."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from aiokafka import TopicPartition

from dedupe.model.errors import RetriableError
from dedupe.model.types import LogRecord
from dedupe.storage.kafka import log as kafka_log
from dedupe.storage.kafka import reader as kafka_reader
from dedupe.storage.kafka.decisions import DecisionsReader
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.wire import ProducerIdAndEpoch
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.routing_records import routing_topic_of
from tests.conftest import TopicFactory
from tests.contract.decision_contract import DecisionContract, decided
from tests.contract.log_contract import (
    PARTITIONS,
    LogContract,
    LogWorld,
    at,
    fenced,
    read_all,
    records_of,
    visible_end,
)
from tests.support.kafka import create_topic, delete_records, delete_topics
from tests.support.records import fill_topic
from tests.support.settings import kafka_config, routing_key


class KafkaWorld(LogWorld):
    """A topic of the session's broker."""

    def __init__(self, store: KafkaStore, topic: str) -> None:
        """Take a connection, for what no gateway does."""
        super().__init__()
        self.topic = topic
        self._store = store

    async def connect(self, crashpoint: Crashpoint) -> KafkaStore:
        """See LogWorld."""
        return await KafkaStore.open(
            self._store.config, crashpoint=crashpoint, routing=routing_key(self.topic)
        )

    async def trim(self, partition: int, first_kept: LogRecord) -> None:
        """See LogWorld."""
        await delete_records(self._store.config.bootstrap_servers, self.topic, {partition: first_kept.offset})


@pytest.fixture
async def world(kafka_bootstrap: str, topic: TopicFactory) -> AsyncIterator[KafkaWorld]:
    store = await KafkaStore.open(kafka_config(kafka_bootstrap))
    world = KafkaWorld(store, await topic("contract", partitions=PARTITIONS))
    await create_topic(kafka_bootstrap, routing_topic_of(world.topic), partitions=PARTITIONS + 1)
    yield world
    await world.close()
    await store.close()
    await delete_topics(kafka_bootstrap, [routing_topic_of(world.topic)])


class TestKafkaLog(LogContract):
    """The contract."""


class TestKafkaDecisions(DecisionContract):
    """The contract."""


async def test_retention_during_a_read_skips_nothing_that_is_kept(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "FETCH_BYTES", 1)  # a fetch is one append then
    log = await fenced(world)
    bases = [await log.append(records_of(number, 1)) for number in range(5)]
    end = await visible_end(log, bases[-1] + 1)

    async with aclosing(log.read(0, end)) as batches:
        await anext(batches)
        await world.trim(0, at(bases[3], records_of(3, 1))[0])
        with pytest.raises(RetriableError, match="OffsetOutOfRange"):
            async for _ in batches:
                pass

    assert [record.offset for record in await read_all(log, 0, end)] == bases[3:]


async def test_what_a_gateway_of_old_wrote_in_transactions_counts_where_it_was_committed(
    world: KafkaWorld, kafka_bootstrap: str
) -> None:
    """Gateways committed by transactions once (docs/adr/0018-one-request-a-commit.md)."""
    await fill_topic(kafka_bootstrap, world.topic, {0: records_of(0, 2)}, commit=False)
    await fill_topic(kafka_bootstrap, world.topic, {0: records_of(2, 2)})
    log = await fenced(world)

    base = await log.append(records_of(4, 1))

    found = await read_all(log, 0, base + 1)
    assert [record[1:] for record in found] == records_of(2, 3)


@pytest.mark.regression("A rebuild paused although there was more to read.")
async def test_read_pauses_only_where_there_is_nothing_to_read(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "FETCH_BYTES", 1)  # a fetch is one append then
    monkeypatch.setattr(kafka_log, "READ_BATCH_RECORDS_MAX", 2)
    monkeypatch.setattr(kafka_reader, "RETRY_S", 1_000)
    log = await fenced(world)
    bases = [await log.append(records_of(number, count)) for number, count in ((0, 2), (2, 3), (5, 4))]

    found = await read_all(log, 0, bases[-1] + 4)

    assert [record[1:] for record in found] == records_of(0, 9)


@pytest.mark.regression(
    "Events of topics that brokers compress were acknowledged, and no gateway could serve after a restart."
)
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_the_broker_compresses_is_read_back(
    kafka_bootstrap: str, topic: TopicFactory, codec: str
) -> None:
    name = await topic("compressed", configs={"compression.type": codec})
    store = await KafkaStore.open(kafka_config(kafka_bootstrap))
    log = store.partition_log(name, 0)
    await log.fence()
    records = records_of(0, 100)

    base = await log.append(records)

    assert await read_all(log, 0, await log.fence()) == at(base, records)
    await log.close()
    await store.close()


async def test_decisions_without_the_marker_of_the_fence_are_not_believed(world: KafkaWorld) -> None:
    """As those that a leader shows that is deposed and does not know of it."""
    store = await world.connect(no_crashpoint)
    log = store.deciding_log(world.topic, 0)
    await decided(log)
    reader = DecisionsReader(store.config, store.cluster, TopicPartition(routing_topic_of(world.topic), 1))

    with pytest.raises(RetriableError, match="does not know of the fence"):
        await reader.behind_marker(ProducerIdAndEpoch(7, 7), 0)
    await log.close()
    await store.close()
