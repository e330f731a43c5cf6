"""
Claim: a leader takes nothing of a fenced producer, whatever has befallen it since: what it knows of epochs
outlives its end, the deletion of all records, its leadership, and an owner whose clock is behind.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.model.errors import NotAppendedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.setting_rules import PRODUCER_EXPIRATION_MIN_MS, TIMESTAMP_BEFORE_MAX_MS
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.transactions import FENCED_CODES
from tests.contract.log_contract import read_all
from tests.support.kafka import KafkaBroker, create_topic, delete_records
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

TOPIC = "fencing"
NOT_LEADER_OR_FOLLOWER = 6


@pytest.fixture
def replicas() -> int:
    """How many brokers know what the coordinator knows."""
    return 1


@pytest.fixture
def broker(tmp_path: Path, replicas: int) -> Iterator[KafkaBroker]:
    """One that forgets producers as early as production lets it."""
    properties = {
        "transaction.state.log.replication.factor": str(replicas),
        "producer.id.expiration.ms": str(PRODUCER_EXPIRATION_MIN_MS),
    }
    with KafkaBroker(tmp_path / "1", properties=properties) as broker:
        yield broker


@pytest.fixture
async def store(broker: KafkaBroker) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(broker.bootstrap_servers, request_timeout_s=5))
    yield store
    await store.close()


def record(key: str) -> NewRecord:
    """Return one of a clock as far behind as production lets it be."""
    now_ms = time.time_ns() // 1_000_000
    return NewRecord(now_ms - TIMESTAMP_BEFORE_MAX_MS, key.encode(), b"value", [])


async def zombie_and_owner(store: KafkaStore, partition: int = 0) -> tuple[KafkaLog, KafkaLog]:
    """Return two that have fenced one after the other; the first one has appended between."""
    zombie, owner = (store.partition_log(TOPIC, partition) for _ in range(2))
    await fenced(zombie)
    await appended(zombie, "first")
    await fenced(owner)
    return zombie, owner


async def fenced(log: KafkaLog) -> None:
    """Fence, again while brokers begin."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RetriableError):
                await log.fence()
                return


async def appended(log: KafkaLog, key: str) -> None:
    """Append; what fails before it is there is tried again behind another fence."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.append([record(key)])
                return
            except NotAppendedError:
                await fenced(log)


async def is_refused(zombie: KafkaLog) -> bool:
    """Whether the leader of now refuses one that is frozen after it has asked whether it is the owner."""
    producer = zombie._producer
    assert producer is not None
    request = producer._produce.encode(producer._batch_of([record("zombie")]))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RetriableError, KafkaError, OSError):
                leader = await zombie._store.cluster.leader_of(zombie._tp)
                connection = await producer._connections.connect(leader)
                code = producer._produce.decode(await connection.send_encoded(request)).code
                if code != NOT_LEADER_OR_FOLLOWER:
                    break
            await asyncio.sleep(0.05)
    await zombie.close()
    return code in FENCED_CODES


async def keys(log: KafkaLog) -> list[str]:
    _, end = await log.bounds()
    return [found.key.decode() for found in await read_all(log, 0, end)]


async def test_what_a_leader_knows_of_epochs_outlives_its_end(broker: KafkaBroker, store: KafkaStore) -> None:
    await create_topic(broker.bootstrap_servers, TOPIC)
    zombie, owner = await zombie_and_owner(store)

    broker.kill()
    await asyncio.to_thread(broker.start)

    assert await is_refused(zombie)
    await appended(owner, "second")
    assert await keys(owner) == ["first", "second"]
    await owner.close()


async def test_leader_does_not_forget_who_writes_with_a_clock_that_is_behind(
    broker: KafkaBroker, store: KafkaStore
) -> None:
    await create_topic(broker.bootstrap_servers, TOPIC)
    zombie, owner = await zombie_and_owner(store)
    await appended(owner, "second")

    broker.stop()  # it looks who is to be forgotten when it begins
    await asyncio.to_thread(broker.start)

    assert await is_refused(zombie)
    assert await keys(owner) == ["first", "second"]
    await owner.close()


async def test_what_a_leader_knows_of_epochs_outlives_all_records(
    broker: KafkaBroker, store: KafkaStore
) -> None:
    await create_topic(broker.bootstrap_servers, TOPIC)
    zombie, owner = await zombie_and_owner(store)

    _, end = await owner.bounds()
    await delete_records(broker.bootstrap_servers, TOPIC, {0: end})

    assert await is_refused(zombie)
    await appended(owner, "second")
    assert await keys(owner) == ["second"]
    await owner.close()


@pytest.mark.parametrize("replicas", [3])
async def test_what_a_leader_knows_of_epochs_is_known_to_its_successor(
    broker: KafkaBroker, store: KafkaStore, tmp_path: Path
) -> None:
    with (
        broker.joined_by(tmp_path / "2", node_id=2) as second,
        broker.joined_by(tmp_path / "3", node_id=3) as third,
    ):
        partitions = 3  # each led by another broker; the first one is the controller, and has to live
        await create_topic(broker.bootstrap_servers, TOPIC, partitions=partitions, replication_factor=3)
        by_port = {other.port: other for other in (second, third)}
        places = [TopicPartition(TOPIC, number) for number in range(partitions)]
        leaders = [await store.cluster.leader_of(place) for place in places]
        partition, leader = next(
            (number, leader) for number, leader in enumerate(leaders) if leader.port in by_port
        )
        zombie, owner = await zombie_and_owner(store, partition)

        by_port[leader.port].kill()

        assert await is_refused(zombie)
        await appended(owner, "second")
        assert await keys(owner) == ["first", "second"]
        await owner.close()
