"""
Claim: whatever request or answer of a transaction is lost or late, an append either took place or
not, says so truthfully, and never becomes part of a later one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_log import KafkaLog, KafkaStore
from dedupe.errors import NotAppendedError, OutcomeUnknownError
from dedupe.types import NewRecord
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.kafka_proxy import Api, Fault, KafkaProxy
from tests.support.processes import HOST, free_port

TOPIC = "taint"


@pytest.fixture(scope="module")
def proxied_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, int]]:
    """A broker that tells its clients to come through the proxy's port."""
    port = free_port()
    properties = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka-proxied"), properties=properties) as broker:
        yield broker, port


@pytest.fixture
async def proxy(proxied_broker: tuple[KafkaBroker, int]) -> AsyncIterator[KafkaProxy]:
    broker, port = proxied_broker
    async with KafkaProxy(port, broker.port) as proxy:
        yield proxy


@pytest.fixture
async def log(proxy: KafkaProxy, request: pytest.FixtureRequest) -> AsyncIterator[KafkaLog]:
    """A fenced partition with one committed record, on a topic of the test's own."""
    topic = f"taint-{abs(hash(request.node.name))}"
    servers = f"{HOST}:{proxy.port}"
    await create_topic(servers, topic)
    store = await KafkaStore.open(KafkaConfig(servers, request_timeout_s=5))
    log = store.partition_log(topic, 0)
    await log.fence()
    await log.append([record("first")])
    yield log
    await log.close()
    await store.close()


def record(key: str) -> NewRecord:
    return NewRecord(1, key.encode(), b"value", [])


async def keys(log: KafkaLog) -> list[str]:
    end = await log.fence()
    return [found.key.decode() async for batch in log.read(0, end) for found in batch]


async def test_lost_commit_answer_is_unknown_and_the_records_are_there(
    proxy: KafkaProxy, log: KafkaLog
) -> None:
    proxy.inject(Api.END_TXN, Fault.LOSE_ANSWER)
    with pytest.raises(OutcomeUnknownError):
        await log.append([record("second")])
    assert await keys(log) == ["first", "second"]
    await log.append([record("third")])
    assert await keys(log) == ["first", "second", "third"]


async def test_lost_commit_request_is_unknown_and_nothing_is_there(proxy: KafkaProxy, log: KafkaLog) -> None:
    proxy.inject(Api.END_TXN, Fault.LOSE_REQUEST)
    with pytest.raises(OutcomeUnknownError):
        await log.append([record("second")])
    assert await keys(log) == ["first"]
    await log.append([record("third")])
    assert await keys(log) == ["first", "third"]


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN])
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
async def test_loss_before_the_commit_leaves_nothing(
    api: Api, fault: Fault, proxy: KafkaProxy, log: KafkaLog
) -> None:
    proxy.inject(api, fault)
    with pytest.raises(NotAppendedError):
        await log.append([record("second")])
    assert Api.END_TXN not in proxy.seen[proxy.seen.index(Api.END_TXN) + 1 :]
    assert await keys(log) == ["first"]
    await log.append([record("third")])
    assert await keys(log) == ["first", "third"]


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN])
async def test_late_request_of_an_abandoned_transaction_changes_nothing(
    api: Api, proxy: KafkaProxy, log: KafkaLog
) -> None:
    proxy.inject(api, Fault.HOLD_REQUEST)
    with pytest.raises((NotAppendedError, OutcomeUnknownError)):
        await log.append([record("second")])
    assert await keys(log) == ["first"]
    await log.append([record("third")])
    await asyncio.wait_for(proxy.release(), 10)
    await log.append([record("fourth")])
    assert await keys(log) == ["first", "third", "fourth"]


async def test_foreign_record_is_noticed_before_the_commit(
    proxied_broker: tuple[KafkaBroker, int], log: KafkaLog, tmp_path: Path
) -> None:
    from aiokafka import AIOKafkaProducer

    topic = log._tp.topic
    foreign = AIOKafkaProducer(bootstrap_servers=f"{HOST}:{proxied_broker[1]}")
    await foreign.start()
    await foreign.send_and_wait(topic, b"foreign", key=b"foreign", partition=0)
    await foreign.stop()
    with pytest.raises(NotAppendedError, match="instead of"):
        await log.append([record("second")])
    assert await keys(log) == ["first", "foreign"]
