"""
Claim: a topic that is deleted under a running gateway does not come back by itself, whatever the broker
would do, and every error says so; one that somebody makes again is not taken for the old one.
"""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from dedupe.model.errors import NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from tests.contract.log_contract import at, read_all, records_of
from tests.support.kafka import KafkaBroker, create_topic, delete_topics
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

TOPIC = "events"


@pytest.fixture(scope="module")
def creating_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that creates whatever topic it is asked for, unless it is asked not to."""
    properties = {"auto.create.topics.enable": "true"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka-creating"), properties=properties) as broker:
        yield broker


@pytest.fixture
async def store(creating_broker: KafkaBroker) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(creating_broker.bootstrap_servers, request_timeout_s=2))
    yield store
    await store.close()


@pytest.fixture
async def log(creating_broker: KafkaBroker, store: KafkaStore) -> AsyncIterator[KafkaLog]:
    """A fenced partition of a topic with three records."""
    await create_topic(creating_broker.bootstrap_servers, TOPIC)
    log = store.partition_log(TOPIC, 0)
    await begin(log)
    yield log
    await log.close()
    if await store.partitions_of(TOPIC):
        await delete_topics(creating_broker.bootstrap_servers, [TOPIC])


async def begin(log: KafkaLog) -> None:
    """Store three records; a busy machine may take longer for a fence than a request may."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.fence()
                await log.append(records_of(0, 3))
            except OutcomeUnknownError:
                raise
            except RetriableError:
                continue
            return


async def assert_stays_deleted(broker: KafkaBroker, store: KafkaStore) -> None:
    """
    Nobody has asked the broker to create the topic.

    It creates topics one after the other: one that it is asked for now comes after all others.
    """
    control = f"control-{uuid.uuid4().hex[:12]}"
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await client.start()
    await client.describe_topics([control])
    await client.close()
    async with asyncio.timeout(PATIENCE_S):
        while await store.partitions_of(control) == 0:
            await asyncio.sleep(0.05)
    assert await store.partitions_of(TOPIC) == 0


async def wait_for_empty_log(log: KafkaLog) -> None:
    """A broker tells of a new topic's leader before its replica takes records: until then it refuses them."""
    bounds: tuple[int, int] | None = None
    async with asyncio.timeout(PATIENCE_S):
        while bounds != (0, 0):
            with suppress(RetriableError):
                bounds = await log.bounds()
            await asyncio.sleep(0.05)


async def append_until_refused(log: KafkaLog) -> None:
    """A broker that has answered a deletion may take records for a moment, until it has read of it."""
    async with asyncio.timeout(PATIENCE_S):
        for number in itertools.count(3):
            await log.append(records_of(number, 1))


@pytest.mark.kafka
async def test_deleted_topic_is_missed_truthfully(
    creating_broker: KafkaBroker, store: KafkaStore, log: KafkaLog
) -> None:
    await delete_topics(creating_broker.bootstrap_servers, [TOPIC])

    with pytest.raises(NotAppendedError):
        await append_until_refused(log)
    for ask in (log.fence, log.bounds, lambda: log.offset_at(0), lambda: read_all(log, 0, 3)):
        with pytest.raises(RetriableError, match=f"topic {TOPIC} does not exist"):
            await ask()
    assert await store.partitions_of(TOPIC) == 0
    await assert_stays_deleted(creating_broker, store)


@pytest.mark.kafka
async def test_topic_deleted_before_an_append_does_not_come_back(
    creating_broker: KafkaBroker, store: KafkaStore, log: KafkaLog
) -> None:
    await log.fence()
    await delete_topics(creating_broker.bootstrap_servers, [TOPIC])

    with pytest.raises(NotAppendedError):
        await append_until_refused(log)

    await assert_stays_deleted(creating_broker, store)


@pytest.mark.kafka
async def test_topic_deleted_during_a_read_does_not_come_back(
    creating_broker: KafkaBroker, store: KafkaStore, log: KafkaLog
) -> None:
    async with aclosing(log.read(0, 100)) as batches:
        await anext(batches)
        await delete_topics(creating_broker.bootstrap_servers, [TOPIC])
        with pytest.raises(RetriableError):
            await anext(batches)

    await assert_stays_deleted(creating_broker, store)


@pytest.mark.kafka
async def test_topic_made_again_is_noticed_by_the_first_append(
    creating_broker: KafkaBroker, log: KafkaLog
) -> None:
    await delete_topics(creating_broker.bootstrap_servers, [TOPIC])
    await create_topic(creating_broker.bootstrap_servers, TOPIC)
    await wait_for_empty_log(log)

    with pytest.raises(OutcomeUnknownError):
        await log.append(records_of(3, 1))
    end = await log.fence()
    found = await read_all(log, 0, end)
    assert found == at(0, records_of(3, 1))
    base = await log.append(records_of(4, 1))
    assert await read_all(log, 0, await log.fence()) == [*found, *at(base, records_of(4, 1))]
