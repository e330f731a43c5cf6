"""
Claim: a long read in a zone with a replica is one of that replica, and one of the leader where there is none,
where it is gone, and for short reads and markers.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import pytest
from aiokafka import TopicPartition

from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.reader import FETCH_BYTES_OF_FEW, PartitionReader
from dedupe.storage.kafka.store import KafkaStore
from tests.integration.test_kafka_fencing import appended, fenced
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

TOPIC = "racks"
MANY = 1024 * 1024
SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
COUNT = 20


class Zones(NamedTuple):
    """A cluster of a broker in each of two zones, a partition of both, and who leads it."""

    store: KafkaStore
    tp: TopicPartition
    leader: Address
    follower: KafkaBroker
    rack: str
    """The follower's."""

    def reader(self, *, fetch_bytes: int = MANY, rack: str | None = None) -> PartitionReader:
        config = replace(self.store.config, client_rack=self.rack if rack is None else rack)
        return PartitionReader(config, self.store.cluster, self.tp, 0, fetch_bytes=fetch_bytes)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    folder = tmp_path_factory.mktemp("racks")
    with (
        KafkaBroker(folder / "1", properties={"broker.rack": "zone-a", **SELECTOR}) as first,
        first.joined_by(folder / "2", node_id=2, properties={"broker.rack": "zone-b"}) as second,
    ):
        yield first, second


@pytest.fixture
async def zones(
    brokers: tuple[KafkaBroker, KafkaBroker], request: pytest.FixtureRequest
) -> AsyncIterator[Zones]:
    """A partition of the test's own that the first broker leads: it is the controller, and has to live."""
    first, second = brokers
    topic = f"{TOPIC}-{abs(hash(request.node.name))}"
    await create_topic(first.bootstrap_servers, topic, partitions=2, replication_factor=2)
    store = await KafkaStore.open(kafka_config(first.bootstrap_servers, request_timeout_s=60))
    leaders = {number: await store.cluster.leader_of(TopicPartition(topic, number)) for number in range(2)}
    partition, leader = next(
        (number, leader) for number, leader in leaders.items() if leader.port == first.port
    )
    log = store.partition_log(topic, partition)
    await fenced(log)
    for number in range(COUNT):
        await appended(log, str(number))
    await log.close()
    yield Zones(store, TopicPartition(topic, partition), leader, second, "zone-b")
    await store.close()


@pytest.fixture
def connected_to(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that connections were opened to."""
    ports: list[int] = []
    opened = BrokerConnection.open

    async def noted(config: KafkaConfig, address: Address, **more: int) -> BrokerConnection:
        ports.append(address.port)
        return await opened(config, address, **more)

    monkeypatch.setattr("dedupe.storage.kafka.reader.BrokerConnection.open", noted)
    return ports


async def read_all(reader: PartitionReader) -> list[str]:
    """Return all keys, of reads of a few."""
    keys: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(keys) < COUNT:
            keys += [found.key.decode() for found in await reader.read(3)]
    return keys


WHOLE = [str(number) for number in range(COUNT)]


async def test_long_read_is_of_the_replica_that_is_near(zones: Zones, connected_to: list[int]) -> None:
    with closing(zones.reader()) as reader:
        assert await read_all(reader) == WHOLE
    assert connected_to[-2:] == [zones.leader.port, zones.follower.port]


@pytest.mark.parametrize(
    ("rack", "fetch_bytes"),
    [("", MANY), ("zone-a", MANY), ("zone-c", MANY), ("zone-b", FETCH_BYTES_OF_FEW)],
    ids=["no zone", "the leader's", "nobody's", "a short read"],
)
async def test_other_reads_are_of_the_leader(
    zones: Zones, connected_to: list[int], rack: str, fetch_bytes: int
) -> None:
    with closing(zones.reader(rack=rack, fetch_bytes=fetch_bytes)) as reader:
        assert await read_all(reader) == WHOLE
    assert connected_to[-1:] == [zones.leader.port]
    assert zones.follower.port not in connected_to


async def test_markers_are_read_from_the_leader(zones: Zones, connected_to: list[int]) -> None:
    with closing(zones.reader()) as reader:
        await read_all(reader)
        markers = await reader.control_markers(reader.position + 1)
    assert connected_to[-1] == zones.leader.port
    assert not markers.producers


async def test_reading_goes_on_at_the_leader_when_the_replica_is_gone(
    zones: Zones, connected_to: list[int]
) -> None:
    with closing(zones.reader()) as reader:
        first = await reader.read(1)
        assert connected_to[-1] == zones.follower.port
        reader._fetched = None
        zones.follower.kill()
        try:
            rest = [*first]
            async with asyncio.timeout(PATIENCE_S):
                while len(rest) < COUNT:
                    rest += await reader.read(5)
        finally:
            await asyncio.to_thread(zones.follower.start)
    assert [found.key.decode() for found in rest] == WHOLE
    assert connected_to[-1] == zones.leader.port
