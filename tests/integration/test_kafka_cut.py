"""
Claim: what the owner of a partition decides beside it is there when the next fence is over, or never will be:
whatever becomes of the request, of the broker that leads the decisions, and of an owner that slept.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.decisions import DECISION_BYTES_MAX
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.wire import PRODUCE, PRODUCE_VERSIONS, ProduceCodec
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

TOPIC, ROUTING = "cut", "cut.routing"
SAFE = {"min.insync.replicas": "2"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    properties = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    with KafkaBroker(tmp_path / "1", properties=properties) as broker:
        yield broker


@pytest.fixture
def others(broker: KafkaBroker, tmp_path: Path) -> Iterator[Sequence[KafkaBroker]]:
    """Two more brokers of the same cluster; the first one is the controller, and has to live."""
    with (
        broker.joined_by(tmp_path / "2", node_id=2) as second,
        broker.joined_by(tmp_path / "3", node_id=3) as third,
    ):
        yield second, third


@pytest.fixture
async def store(broker: KafkaBroker, others: Sequence[KafkaBroker]) -> AsyncIterator[KafkaStore]:
    """A connection to a cluster with a clean topic and its routing topic, each partition led elsewhere."""
    for name, partitions in ((TOPIC, 3), (ROUTING, 4)):
        await create_topic(
            broker.bootstrap_servers, name, partitions=partitions, replication_factor=3, configs=SAFE
        )
    store = await KafkaStore.open(kafka_config(broker.bootstrap_servers, request_timeout_s=6))
    yield store
    await store.close()


def decision(text: str) -> NewRecord:
    return NewRecord(time.time_ns() // 1_000_000, b"cut", text.encode(), [])


async def place_led_by(store: KafkaStore, brokers: Sequence[KafkaBroker]) -> tuple[int, KafkaBroker]:
    """Return a clean partition whose decisions one of these brokers leads, and the broker."""
    by_port = {broker.port: broker for broker in brokers}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for partition in range(3):
                with suppress(RetriableError):  # not every broker knows the topic at once
                    leader = await store.cluster.leader_of(TopicPartition(ROUTING, partition + 1))
                    if leader.port in by_port:
                        return partition, by_port[leader.port]
            await asyncio.sleep(0.1)


def owner_of(store: KafkaStore, partition: int) -> KafkaLog:
    return KafkaLog(store, TOPIC, partition, TopicPartition(ROUTING, partition + 1))


async def decided(log: KafkaLog) -> list[str]:
    """Fence, again while the cluster does not answer, and return what was decided before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RetriableError):
                await log.fence()
                return [record.value.decode() for record in log.decisions]
            await asyncio.sleep(0.1)


async def code_of(zombie: KafkaLog, text: str) -> int:
    """Return the answer of whoever leads now to a decision of an owner that was frozen before it sent it."""
    producer, beside = zombie._producer, zombie._beside
    assert producer is not None
    assert beside is not None
    batch = encode_batch(
        [decision(text)], producer._producer, producer._decided, bytes_max=DECISION_BYTES_MAX
    )
    codec = ProduceCodec(beside.tp, timeout_ms=2_000)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RetriableError, KafkaError, OSError):
                leader = await zombie._store.cluster.leader_of(beside.tp)
                connection = await producer._connections.connect(leader)
                codec.version = connection.version_of(PRODUCE, *PRODUCE_VERSIONS)
                code = codec.decode(await connection.send_encoded(codec.encode(batch))).code
                if code not in (6, 19, 20):  # no leader, or not enough replicas yet
                    return code
            await asyncio.sleep(0.1)


async def test_decision_is_found_by_the_next_owner_and_a_late_one_never_arrives(store: KafkaStore) -> None:
    first, second = owner_of(store, 0), owner_of(store, 0)
    assert await decided(first) == []
    await first.decide(decision("a"))
    await first.append([decision("an event after it")])
    await first.decide(decision("b"))

    assert await decided(second) == ["a", "b"]

    with pytest.raises(FencedError):
        await first.decide(decision("late"))
    with pytest.raises(NotAppendedError):
        await first.append([decision("an event of the older owner")])
    await second.decide(decision("c"))
    third = owner_of(store, 0)
    assert await decided(third) == ["a", "b", "c"]
    for log in (first, second, third):
        await log.close()


async def test_leader_of_decisions_that_is_killed_leaves_what_it_knew_to_its_successor(
    store: KafkaStore, others: Sequence[KafkaBroker]
) -> None:
    partition, leader = await place_led_by(store, others)
    zombie, owner = owner_of(store, partition), owner_of(store, partition)
    await decided(zombie)
    await zombie.decide(decision("a"))
    assert await decided(owner) == ["a"]

    leader.kill()

    assert await code_of(zombie, "late") in (47, 90)
    assert await decided(owner) == ["a"]
    for log in (zombie, owner):
        await log.close()


async def test_what_is_sent_to_a_deposed_leader_never_counts(
    store: KafkaStore, others: Sequence[KafkaBroker]
) -> None:
    partition, leader = await place_led_by(store, others)
    zombie, owner = owner_of(store, partition), owner_of(store, partition)
    await decided(zombie)
    await zombie.decide(decision("a"))

    leader.freeze()
    sent = asyncio.ensure_future(zombie.decide(decision("into the void")))
    try:
        before = await decided(owner)  # by the leader that is elected meanwhile
        with pytest.raises((OutcomeUnknownError, NotAppendedError)):
            await sent
    finally:
        leader.thaw()

    assert before == ["a"]
    for _ in range(5):  # while the deposed one finds out
        assert await decided(owner) == ["a"]
        await asyncio.sleep(0.5)
    for log in (zombie, owner):
        await log.close()


async def test_doubt_about_a_decision_ends_with_the_next_fence(
    store: KafkaStore, others: Sequence[KafkaBroker]
) -> None:
    partition, leader = await place_led_by(store, others)
    owner = owner_of(store, partition)
    await decided(owner)

    leader.freeze()
    with pytest.raises((OutcomeUnknownError, NotAppendedError)):
        await owner.decide(decision("a"))
    await asyncio.to_thread(leader.thaw)

    found = await decided(owner)
    assert found in ([], ["a"])
    for _ in range(3):
        assert await decided(owner) == found
    await owner.close()
