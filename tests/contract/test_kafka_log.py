"""KafkaLog keeps the contract, on a real broker."""

from collections.abc import AsyncIterator

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_log import KafkaStore
from dedupe.log import Crashpoint
from dedupe.types import LogRecord
from tests.conftest import TopicFactory
from tests.contract.log_contract import PARTITIONS, LogContract, LogWorld


class KafkaWorld(LogWorld):
    """A topic of the session's broker."""

    def __init__(self, store: KafkaStore, topic: str) -> None:
        """Take a connection, for what no gateway does."""
        super().__init__()
        self.topic = topic
        self._store = store

    async def connect(self, crashpoint: Crashpoint) -> KafkaStore:
        """See LogWorld."""
        return await KafkaStore.open(self._store.config, crashpoint=crashpoint)

    async def trim(self, partition: int, first_kept: LogRecord) -> None:
        """See LogWorld."""
        place = TopicPartition(self.topic, partition)
        await self._store.cluster.ask(
            lambda admin: admin.delete_records({place: RecordsToDelete(first_kept.offset)})
        )


@pytest.fixture
async def world(kafka_bootstrap: str, topic: TopicFactory) -> AsyncIterator[KafkaWorld]:
    store = await KafkaStore.open(KafkaConfig(bootstrap_servers=kafka_bootstrap))
    world = KafkaWorld(store, await topic("contract", partitions=PARTITIONS))
    yield world
    await world.close()
    await store.close()


class TestKafkaLog(LogContract):
    """The contract."""
