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
from dedupe.storage.kafka.cluster import KafkaCluster
from tests.support.settings import kafka_config
from tests.support.sim_kafka import SimKafka
from tests.support.sim_kafka_net import FIND_COORDINATOR, HOST, METADATA, PORTS, SimKafkaNet
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


class Silent(asyncio.Transport):
    """The client's end of a connection to a broker that is frozen."""

    def __init__(self, _protocol: asyncio.Protocol) -> None:
        super().__init__()

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass


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


async def test_broker_that_is_silent_is_asked_last_from_then_on(net: SimKafkaNet) -> None:
    cluster = KafkaCluster(kafka_config(f"{HOST}:{PORTS[0]}"))
    await cluster.describe()  # which tells of the other one
    net.holds_s = [1000.0]
    net.due[FIND_COORDINATOR] = ["hold_request"]
    loop().listeners[HOST, PORTS[0]] = Silent
    began_at = loop().time()
    with pytest.raises(RetriableError, match="no answer within 8 s"):
        async with asyncio.timeout(10):
            await cluster.coordinator_of("gateway-events-0")

    for _ in range(3):
        assert await cluster.coordinator_of("gateway-events-0") is not None
    assert loop().time() - began_at < CONFIG.request_timeout_s + 1
    cluster.close()


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
