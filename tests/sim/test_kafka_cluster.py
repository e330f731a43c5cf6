"""
Claim: a cluster of which one broker is gone or silent is asked through the others, and all lanes share one
connection to each broker.
"""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from aiokafka import TopicPartition

from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.answer_limit import ASK_S
from dedupe.storage.kafka.cluster import SHARED_S, KafkaCluster
from tests.support.settings import kafka_config
from tests.support.sim_kafka import SimKafka
from tests.support.sim_kafka_net import HOST, METADATA, PORTS, SimKafkaNet
from tests.support.virtual_time import VirtualTimeLoop

TP = TopicPartition("events", 0)
NODES = ",".join(f"{HOST}:{port}" for port in PORTS)
CONFIG = kafka_config(NODES)


@pytest.fixture
async def net() -> AsyncIterator[SimKafkaNet]:
    net = SimKafkaNet(SimKafka("events", 1, loop().time), Random(0))
    net.listen(loop())
    yield net
    await net.close()


@pytest.fixture
async def cluster(net: SimKafkaNet) -> AsyncIterator[KafkaCluster]:
    cluster = KafkaCluster(CONFIG)
    yield cluster
    cluster.close()


def loop() -> VirtualTimeLoop:
    found = asyncio.get_running_loop()
    assert isinstance(found, VirtualTimeLoop)
    return found


async def test_lanes_share_a_connection(net: SimKafkaNet, cluster: KafkaCluster) -> None:
    await asyncio.gather(*(cluster.offsets(TP, -2, -1) for _ in range(8)))

    assert len(net.transports) <= len(PORTS)


@pytest.mark.parametrize("gone", PORTS)
async def test_broker_that_is_gone_is_passed_over(cluster: KafkaCluster, gone: int) -> None:
    def refuse(_protocol: asyncio.Protocol) -> asyncio.Transport:
        raise ConnectionRefusedError

    loop().listeners[HOST, gone] = refuse
    for _ in range(3):
        assert await cluster.partitions_of("events") == 1


@pytest.mark.parametrize("is_connected", [True, False])
async def test_broker_that_is_silent_costs_one_question_and_is_asked_last_from_then_on(
    net: SimKafkaNet, is_connected: bool
) -> None:
    cluster = KafkaCluster(kafka_config(f"{HOST}:{PORTS[0]}"))
    await cluster.describe()  # which tells of the other one
    if not is_connected:
        net.transports[0].close()
        await asyncio.sleep(0.01)
    net.freeze(0)
    began_at = loop().time()
    assert await cluster.coordinator_of("gateway-events-0") is not None
    assert ASK_S <= loop().time() - began_at < ASK_S + 0.1

    for _ in range(3):
        assert await cluster.coordinator_of("gateway-events-0") is not None
    assert loop().time() - began_at < ASK_S + 0.2
    net.thaw(0)
    cluster.close()


async def test_cluster_that_is_slow_as_a_whole_is_waited_for(net: SimKafkaNet, cluster: KafkaCluster) -> None:
    net.slowness_s = 2 * ASK_S - 1
    tries = 0
    async with asyncio.timeout(60):
        while not await _is_answered(cluster):
            tries += 1
    assert tries <= len(PORTS)
    for _ in range(3):
        assert await _is_answered(cluster), "known by then"


async def _is_answered(cluster: KafkaCluster) -> bool:
    try:
        return await cluster.partitions_of("events") == 1
    except RetriableError:
        return False


async def test_partition_is_led_elsewhere_once_a_broker_says_so(
    net: SimKafkaNet, cluster: KafkaCluster
) -> None:
    before = await cluster.leader_of(TP)
    assert not await cluster.is_led_elsewhere(TP, before)
    net.kafka.leader = 1
    assert not await cluster.is_led_elsewhere(TP, before), "one answer for all who ask at once"
    await asyncio.sleep(2 * SHARED_S)
    assert await cluster.is_led_elsewhere(TP, before)
    assert not await cluster.is_led_elsewhere(TP._replace(partition=7), before), "nobody leads it"


async def test_brokers_that_all_refuse_are_an_error_that_may_be_retried(cluster: KafkaCluster) -> None:
    listeners = dict(loop().listeners)
    loop().listeners.clear()
    with pytest.raises(RetriableError, match="Kafka does not answer"):
        await cluster.describe()
    loop().listeners.update(listeners)
    assert (await cluster.describe()).cluster_id == "sim"


@pytest.mark.parametrize("fault", ["lose_request", "lose_answer"])
async def test_question_that_is_lost_is_put_to_the_next_broker(
    net: SimKafkaNet, cluster: KafkaCluster, fault: str
) -> None:
    net.due[METADATA] = [fault]
    assert await cluster.partitions_of("events") == 1
