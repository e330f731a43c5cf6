"""
Claim: a reader gets records that a broker fetches from a remote tier, and reads all of them whatever the
replica does to which a leader has sent it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest
from aiokafka import TopicPartition

from dedupe.model.types import NewRecord
from dedupe.storage.kafka.cluster import KafkaCluster
from dedupe.storage.kafka.producer import FencedProducer
from dedupe.storage.kafka.reader import PREFERRED, REMOTE_WAIT_MS, PartitionReader
from dedupe.storage.log import no_crashpoint
from tests.support.settings import kafka_config
from tests.support.sim_kafka import SimKafka
from tests.support.sim_kafka_net import BOOTSTRAP_SERVERS, FETCH, Follower, SimKafkaNet
from tests.support.virtual_time import VirtualTimeLoop

TP = TopicPartition("events", 0)
ZONE = "zone-b"
CONFIG = replace(kafka_config(BOOTSTRAP_SERVERS), client_rack=ZONE)
COUNT, LEADER, FOLLOWER = 6, 0, 1
MANY = 1024 * 1024
OFFSET_OUT_OF_RANGE, NOT_LEADER, OFFSET_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR = 1, 6, 78, -1
PATIENCE_S = 60.0


@pytest.fixture
async def net() -> AsyncIterator[SimKafkaNet]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    net = SimKafkaNet(SimKafka("events", 1, loop.time), Random(0))
    net.kafka.leader = LEADER
    net.listen(loop)
    yield net
    await net.close()


@pytest.fixture
async def cluster(net: SimKafkaNet) -> AsyncIterator[KafkaCluster]:
    """One with records, a batch each."""
    cluster = KafkaCluster(CONFIG)
    producer = FencedProducer(CONFIG, TP, cluster, crashpoint=no_crashpoint)
    await producer.start()
    for number in range(COUNT):
        await producer.append([record(number)], expected=net.kafka.partitions[0].end)
    producer.close()
    net.requests.clear()
    yield cluster
    cluster.close()


def record(number: int) -> NewRecord:
    return NewRecord(1, str(number).encode(), b"value", [])


async def read_all(cluster: KafkaCluster) -> list[int]:
    numbers: list[int] = []
    with closing(PartitionReader(CONFIG, cluster, TP, 0, fetch_bytes=MANY)) as reader:
        async with asyncio.timeout(PATIENCE_S):
            while len(numbers) < COUNT:
                numbers += [int(found.key) for found in await reader.read(2)]
    return numbers


WHOLE = [*range(COUNT)]


def fetches(net: SimKafkaNet) -> int:
    return sum(request.API_KEY == FETCH for request in net.requests)


@pytest.mark.regression("A rebuild failed at segments in a remote tier.")
async def test_records_of_a_remote_tier_are_waited_for(net: SimKafkaNet, cluster: KafkaCluster) -> None:
    net.tiered_s = REMOTE_WAIT_MS / 1000

    assert await read_all(cluster) == WHOLE


async def test_replica_in_the_zone_is_read_from(net: SimKafkaNet, cluster: KafkaCluster) -> None:
    net.follower = Follower(FOLLOWER, ZONE, net.kafka.partitions[0].end)

    assert await read_all(cluster) == WHOLE
    assert fetches(net) == 2


@pytest.mark.parametrize(
    "code", [OFFSET_OUT_OF_RANGE, NOT_LEADER, OFFSET_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR]
)
async def test_leader_is_read_from_where_the_replica_refuses(
    net: SimKafkaNet, cluster: KafkaCluster, code: int
) -> None:
    net.follower = Follower(FOLLOWER, ZONE, net.kafka.partitions[0].end, code)

    assert await read_all(cluster) == WHOLE
    assert fetches(net) == 3


async def test_leader_is_read_from_where_the_replica_is_behind(
    net: SimKafkaNet, cluster: KafkaCluster
) -> None:
    net.follower = Follower(FOLLOWER, ZONE, 0)

    assert await read_all(cluster) == WHOLE
    assert fetches(net) == 3


async def test_leader_is_read_from_where_the_replica_is_not_known(
    net: SimKafkaNet, cluster: KafkaCluster
) -> None:
    net.follower = Follower(7, ZONE, 0)

    assert await read_all(cluster) == WHOLE


async def test_leader_is_read_from_where_the_replica_cannot_be_reached(
    net: SimKafkaNet, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.follower = Follower(FOLLOWER, ZONE, net.kafka.partitions[0].end)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    described = (await cluster.describe()).brokers[FOLLOWER]
    monkeypatch.delitem(loop.listeners, (described.host, described.port))

    assert await read_all(cluster) == WHOLE


async def test_markers_are_read_from_the_leader(net: SimKafkaNet, cluster: KafkaCluster) -> None:
    net.follower = Follower(FOLLOWER, ZONE, 0)
    end = net.kafka.partitions[0].end

    with closing(PartitionReader(CONFIG, cluster, TP, 0, fetch_bytes=MANY)) as reader:
        markers = await reader.control_markers(end)

    assert len(markers.producers) == 1
    assert reader.position == end
    assert fetches(net) == 1


async def test_brokers_of_old_versions_are_read_from_without_zones(
    net: SimKafkaNet, cluster: KafkaCluster
) -> None:
    net.follower = Follower(FOLLOWER, ZONE, 0)
    net.versions[FETCH] = (4, 10)
    cluster.close()
    other = KafkaCluster(CONFIG)

    assert await read_all(other) == WHOLE
    assert 4 not in PREFERRED
    other.close()
