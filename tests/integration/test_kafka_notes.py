"""
Claim: on Kafka a note lasts as long as its topic, whatever happens to the broker; and one that this
process may not keep is refused with the name of the group and of the missing right.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.storage.kafka.log import KafkaStore
from tests.contract.log_contract import keep
from tests.support.kafka import KafkaBroker, create_topic, delete_topics
from tests.support.kafka_acls import AUTHORIZED, DESCRIBE, READ, allow
from tests.support.settings import kafka_config


@pytest.fixture
async def store(kafka_bootstrap: str) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(kafka_bootstrap))
    yield store
    await store.close()


async def notes_of(store: KafkaStore, name: str, topic: str) -> dict[int, str]:
    """Ask as a gateway does: again, while the log does not answer."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await store.notes(name, topic)
            except RetriableError:
                await asyncio.sleep(0.05)


async def test_notes_survive_the_end_of_the_broker(private_kafka_broker: KafkaBroker) -> None:
    await create_topic(private_kafka_broker.bootstrap_servers, "events", partitions=2)
    store = await KafkaStore.open(kafka_config(private_kafka_broker.bootstrap_servers))
    await keep(store, "pin", "events", 0, "a")
    await keep(store, "pin", "events", 1, "b")

    await asyncio.to_thread(private_kafka_broker.kill)
    with pytest.raises(RetriableError):
        await store.notes("pin", "events")
    await asyncio.to_thread(private_kafka_broker.start)

    assert await notes_of(store, "pin", "events") == {0: "a", 1: "b"}
    await store.close()


async def test_notes_are_lost_with_their_topic(kafka_bootstrap: str, store: KafkaStore) -> None:
    topic = f"noted-{uuid.uuid4().hex[:12]}"
    await create_topic(kafka_bootstrap, topic, partitions=2)
    await keep(store, "pin", topic, 0, "a")
    await keep(store, "pin", topic, 1, "b")

    await delete_topics(kafka_bootstrap, [topic])

    async with asyncio.timeout(20):
        while await notes_of(store, "pin", topic):
            await asyncio.sleep(0.05)
    with pytest.raises(RetriableError, match="UnknownTopic"):
        await store.note("pin", topic, 0, "c")
    await create_topic(kafka_bootstrap, topic, partitions=2)
    assert await notes_of(store, "pin", topic) == {}
    await delete_topics(kafka_bootstrap, [topic])


@pytest.mark.kafka
async def test_note_without_the_right_to_read_its_group_names_both(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", properties=AUTHORIZED) as broker:
        await create_topic(broker.bootstrap_servers, "events")
        store = await KafkaStore.open(kafka_config(broker.bootstrap_servers))
        await keep(store, "pin", "events", 0, "a")
        await keep(store, "trim", "events", 0, "b")
        await allow(store, "gateway-events-pin", "User:somebody-else", READ)
        await allow(store, "gateway-events-trim", "User:ANONYMOUS", DESCRIBE)

        for name in ("pin", "trim"):
            with pytest.raises(ConfigurationError, match=f"group gateway-events-{name}: .* allows Read on"):
                await store.note(name, "events", 0, "c")
        with pytest.raises(ConfigurationError, match=r"group gateway-events-pin: .* allows Read on"):
            await store.notes("pin", "events")
        assert await store.notes("trim", "events") == {0: "b"}
        assert await store.notes("other", "events") == {}
        await store.close()
