"""Claim: what a leader refuses for its size costs no fence; a topic of other times or another id is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dedupe.model.errors import OutcomeUnknownError, RecordsRefusedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.cluster import SHARED_S
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from tests.support.sim_kafka_net import (
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SimKafkaNet,
)

TOPIC = "events"
LIMIT = 5_000


def record_of(size_bytes: int) -> NewRecord:
    return NewRecord(1_700_000_000_000, b"id", b"x" * size_bytes, [("source", b"web")])


@pytest.fixture
async def log(store: KafkaStore) -> AsyncIterator[KafkaLog]:
    """A partition's log that has fenced and appended."""
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    await log.append([record_of(10)])
    yield log
    await log.close()


def count(net: SimKafkaNet, api: int) -> int:
    return sum(api == request.API_KEY for request in net.requests)


@pytest.mark.parametrize(("code", "is_for_size"), [(10, True), (18, True), (87, False)])
async def test_refusal_of_content_leaves_the_producer_its_sequence(
    net: SimKafkaNet, log: KafkaLog, *, code: int, is_for_size: bool
) -> None:
    fences = count(net, INIT_PRODUCER_ID)
    net.due[PRODUCE] = [code, code]
    for _ in range(2):
        with pytest.raises(RecordsRefusedError) as caught:
            await log.append([record_of(100)])
        assert caught.value.is_for_size is is_for_size
        assert TOPIC in str(caught.value)
    await log.append([record_of(100)])
    await log.append([record_of(100)])
    assert count(net, INIT_PRODUCER_ID) == fences


async def test_size_is_refused_before_the_sequence_is_looked_at(net: SimKafkaNet, log: KafkaLog) -> None:
    net.kafka.partitions[0].message_bytes_max = LIMIT
    with pytest.raises(RecordsRefusedError, match=r"max\.message\.bytes"):
        await log.append([record_of(LIMIT)])
    await log.append([record_of(LIMIT // 2)])


async def test_log_append_time_is_refused_at_once_and_until_it_is_repaired(
    net: SimKafkaNet, log: KafkaLog
) -> None:
    net.kafka.has_log_append_time = True
    with pytest.raises(OutcomeUnknownError, match="LogAppendTime"):
        await log.append([record_of(10)])
    produced = count(net, PRODUCE)
    for _ in range(3):
        with pytest.raises(RetriableError, match="set it to CreateTime"):
            await log.fence()
    assert count(net, PRODUCE) == produced
    net.kafka.has_log_append_time = False
    await log.fence()
    await log.append([record_of(10)])


async def test_topic_is_known_by_its_id_and_asked_for_once_by_all_lanes(
    net: SimKafkaNet, log: KafkaLog
) -> None:
    await asyncio.sleep(2 * SHARED_S)
    asked = count(net, METADATA)
    assert all(await asyncio.gather(*(log.has_same_topic() for _ in range(64))))
    assert count(net, METADATA) == asked + 1

    net.kafka.topic_id = b"\2" * 16
    await asyncio.sleep(2 * SHARED_S)
    assert not await log.has_same_topic()
    await log.fence()
    assert await log.has_same_topic()


async def test_cluster_without_topic_ids_has_one_topic_a_name(net: SimKafkaNet, store: KafkaStore) -> None:
    net.versions[METADATA] = (0, 8)
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    await log.append([record_of(10)])
    assert await log.has_same_topic()
    await log.close()
