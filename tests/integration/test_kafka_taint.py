"""
Claim: whatever request or answer of a producer is lost or late, an append either took place or not, says so
truthfully, and never takes place after a fence.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.kafka_proxy import Api, Fault, KafkaProxy, broker_behind_a_proxy
from tests.support.processes import HOST
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module", params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    """The cluster's version of transactions."""
    return int(request.param)


@pytest.fixture(scope="module")
def proxied_broker(
    tmp_path_factory: pytest.TempPathFactory, version: int
) -> Iterator[tuple[KafkaBroker, int]]:
    format_options = ["--feature", f"transaction.version={version}"]
    folder = tmp_path_factory.mktemp("kafka-proxied")
    with broker_behind_a_proxy(folder, format_options=format_options) as proxied:
        yield proxied


@pytest.fixture
async def log(proxy: KafkaProxy, request: pytest.FixtureRequest) -> AsyncIterator[KafkaLog]:
    """A fenced partition with one committed record, on a topic of the test's own."""
    topic = f"taint-{abs(hash(request.node.name))}"
    servers = f"{HOST}:{proxy.port}"
    await create_topic(servers, topic)
    store = await KafkaStore.open(kafka_config(servers, request_timeout_s=60))
    log = store.partition_log(topic, 0)
    try:
        await begin(log)
        yield log
    finally:
        await log.close()
        await store.close()


async def begin(log: KafkaLog) -> None:
    """Commit a first record; a broker that has just started may refuse it for want of replicas."""
    while True:
        await log.fence()
        with suppress(NotAppendedError):
            await log.append([record("first")])
            return


def record(key: str) -> NewRecord:
    return NewRecord(1, key.encode(), b"value", [])


async def keys(log: KafkaLog) -> list[str]:
    end = await log.fence()
    return [found.key.decode() async for batch in log.read(0, end) for found in batch]


async def test_lost_answer_is_unknown_and_the_records_are_there(proxy: KafkaProxy, log: KafkaLog) -> None:
    proxy.inject(Api.PRODUCE, Fault.LOSE_ANSWER)
    with pytest.raises(OutcomeUnknownError):
        await log.append([record("second")])
    assert await keys(log) == ["first", "second"]
    await log.append([record("third")])
    assert await keys(log) == ["first", "second", "third"]


async def test_lost_request_is_unknown_and_nothing_is_there(proxy: KafkaProxy, log: KafkaLog) -> None:
    proxy.inject(Api.PRODUCE, Fault.LOSE_REQUEST)
    with pytest.raises(OutcomeUnknownError):
        await log.append([record("second")])
    assert await keys(log) == ["first"]
    await log.append([record("third")])
    assert await keys(log) == ["first", "third"]


async def test_late_append_of_before_a_fence_takes_no_place(proxy: KafkaProxy, log: KafkaLog) -> None:
    proxy.inject(Api.PRODUCE, Fault.HOLD_REQUEST)
    with pytest.raises(OutcomeUnknownError):
        await log.append([record("second")])
    end = await log.fence()
    await asyncio.wait_for(proxy.release(), PATIENCE_S)
    assert (await log.bounds())[1] == end
    await log.append([record("third")])
    assert await keys(log) == ["first", "third"]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.HOLD_REQUEST])
@pytest.mark.parametrize("api", [Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN])
async def test_fence_that_is_cut_off_fails_and_the_next_one_succeeds(
    api: Api, fault: Fault, proxy: KafkaProxy, log: KafkaLog
) -> None:
    proxy.inject(api, fault)
    with pytest.raises(RetriableError):
        await log.fence()
    await log.fence()
    await log.append([record("second")])
    if fault is Fault.HOLD_REQUEST:
        await asyncio.wait_for(proxy.release(), PATIENCE_S)
    await log.append([record("third")])
    assert await keys(log) == ["first", "second", "third"]


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_late_fence_of_its_own_is_not_taken_for_another_gateway(
    is_given_up: bool, proxy: KafkaProxy, log: KafkaLog
) -> None:
    proxy.inject(Api.INIT_PRODUCER_ID, Fault.HOLD_REQUEST)
    if is_given_up:
        await give_up(log.fence(), when=lambda: proxy.is_holding)
    else:
        with pytest.raises(RetriableError):  # the connection ends; nothing asks again by itself
            await log.fence()
    await log.fence()
    await asyncio.wait_for(proxy.release(), PATIENCE_S)

    await log.append([record("second")])
    await cut_off(log, proxy)  # so that the coordinator is asked
    with pytest.raises(NotAppendedError, match="an earlier attempt of its own"):
        await log.append([record("refused")])

    await log.fence()
    await log.append([record("third")])
    assert await fenced_by_a_rival(log)
    assert await keys(log) == ["first", "second", "third"]


async def test_owner_whose_connection_was_cut_goes_on(proxy: KafkaProxy, log: KafkaLog) -> None:
    await cut_off(log, proxy)
    base = await log.append([record("second")])
    assert await log.append([record("third")]) == base + 1
    assert await keys(log) == ["first", "second", "third"]


async def test_fence_of_a_rival_is_not_taken_for_its_own(log: KafkaLog) -> None:
    assert await fenced_by_a_rival(log)


async def cut_off(log: KafkaLog, proxy: KafkaProxy) -> None:
    assert log._producer is not None
    await proxy.cut()
    async with asyncio.timeout(PATIENCE_S):
        while log._producer._connections.get(log._producer._leader) is not None:
            await asyncio.sleep(0)


async def give_up(call: Coroutine[Any, Any, object], *, when: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(call)
    async with asyncio.timeout(PATIENCE_S):
        while not when():
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def fenced_by_a_rival(log: KafkaLog) -> bool:
    """Whether another writer that takes over is noticed as such."""
    rival = log._store.partition_log(log._tp.topic, 0)
    await rival.fence()
    await rival.close()
    with pytest.raises(RetriableError) as caught:
        await log.append([record("refused")])
    return isinstance(caught.value, FencedError)


async def test_records_that_fit_into_no_batch_are_refused_whole(log: KafkaLog) -> None:
    store = await KafkaStore.open(replace(log._config, batch_bytes_max=1000))
    small = store.partition_log(log._tp.topic, 0)
    await small.fence()

    with pytest.raises(NotAppendedError, match="do not fit"):
        await small.append([NewRecord(1, b"large", bytes(900), []) for _ in range(4)])

    assert await keys(small) == ["first"]
    await small.close()
    await store.close()


async def test_foreign_record_is_noticed(proxied_broker: tuple[KafkaBroker, int], log: KafkaLog) -> None:
    topic = log._tp.topic
    foreign = AIOKafkaProducer(bootstrap_servers=f"{HOST}:{proxied_broker[1]}")
    await foreign.start()
    await foreign.send_and_wait(topic, b"foreign", key=b"foreign", partition=0)
    await foreign.stop()
    with pytest.raises(OutcomeUnknownError, match="instead of"):
        await log.append([record("second")])
    assert await keys(log) == ["first", "foreign", "second"]
