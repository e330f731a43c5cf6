"""
Claim: whatever a broker that is frozen, slow or gone does to a client, the log's calls end in time with
an error that may be retried, nothing of them is left behind, and they work again when the broker does.
"""

import asyncio
import gc
import os
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from aiokafka.protocol.types import String

from dedupe.model.errors import RetriableError
from dedupe.storage.kafka import log as kafka_log
from dedupe.storage.kafka import reader as kafka_reader
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.reader import PartitionReader
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.wire import Request
from tests.contract.log_contract import at, read_all, records_of
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.processes import free_port
from tests.support.settings import kafka_config, routing_key
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

FIRST = 1  # behind the marker of the fence
TIMEOUT_S = 2.0
ALTER_CLIENT_QUOTAS = 49
QUOTA_WINDOWS = 4  # of a second each
STRING = String("utf-8")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that tests may stop, if they start it again."""
    folder = tmp_path_factory.mktemp("kafka-unreachable")
    with KafkaBroker(folder, properties={"quota.window.num": str(QUOTA_WINDOWS)}) as broker:
        yield broker


@pytest.fixture
async def store(broker: KafkaBroker) -> AsyncIterator[KafkaStore]:
    """A connection; once it is closed nothing of it may be left, and asyncio may have no complaints."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    sockets = open_sockets()
    config = kafka_config(broker.bootstrap_servers, request_timeout_s=TIMEOUT_S)
    store = await KafkaStore.open(config, routing=routing_key("events"))
    yield store
    await store.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(asyncio.all_tasks()) > 1 or open_sockets() > sockets:
            await asyncio.sleep(0.01)
    gc.collect()
    assert complaints == []


def open_sockets() -> int:
    """Count the sockets of this process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


@pytest.fixture
async def log(broker: KafkaBroker, store: KafkaStore) -> AsyncIterator[KafkaLog]:
    """A fenced partition with three records."""
    topic = f"events-{uuid.uuid4().hex[:12]}"
    await store_first_records(broker.bootstrap_servers, topic)
    log = store.partition_log(topic, 0)
    await fence(log)
    yield log
    await log.close()


async def store_first_records(servers: str, topic: str) -> None:
    """Make a topic of three records, with more time than its log has in these tests."""
    await create_topic(servers, topic)
    patient = await KafkaStore.open(
        kafka_config(servers, request_timeout_s=30), routing=routing_key("events")
    )
    log = patient.partition_log(topic, 0)
    await log.fence()
    await log.append(records_of(0, 3))
    await log.close()
    await patient.close()


async def fence(log: KafkaLog) -> None:
    """Fence until it succeeds: a busy machine may take longer than a request may."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RetriableError):
                await log.fence()
                return


async def set_quota(broker: KafkaBroker, bytes_per_s: float | None) -> None:
    """Let each client read so many bytes a second, by AlterClientQuotas; None ends it."""
    config = kafka_config(broker.bootstrap_servers)
    connection = await BrokerConnection.open(config, *config.bootstrap_addresses())
    parts = (
        struct.pack(">ii", 1, 1) + STRING.encode("client-id") + struct.pack(">h", -1),
        struct.pack(">i", 1) + STRING.encode("consumer_byte_rate"),
        struct.pack(">d??", bytes_per_s or 0, bytes_per_s is None, False),
    )
    answer = await connection.send_encoded(Request(ALTER_CLIENT_QUOTAS, 0, parts))
    connection.close()
    assert struct.unpack_from(">iih", answer)[1:] == (1, 0), answer


async def assert_fails_in_time(*calls: Awaitable[object]) -> None:
    """All calls fail, together, and may be tried again; how soon is measured in virtual time (tests/sim)."""
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, RetriableError) for result in results), results


async def assert_works_again(log: KafkaLog) -> None:
    """A gateway that tries again gets through, and finds what it had stored before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.fence()
                new = at(await log.append(records_of(7, 2)), records_of(7, 2))
                found = await read_all(log, 0, await log.fence())
            except RetriableError:
                await asyncio.sleep(0.05)
            else:
                assert found[:3] == at(FIRST, records_of(0, 3))
                assert found[-2:] == new
                return


async def test_frozen_broker_fails_every_call_in_time(
    broker: KafkaBroker, store: KafkaStore, log: KafkaLog
) -> None:
    topic = log._tp.topic
    broker.freeze()
    try:
        for _ in range(2):  # on the connections of before, and on new ones
            await assert_fails_in_time(
                log.fence(),
                read_all(store.partition_log(topic, 0), 0, 3),
                store.partitions_of(topic),
                store.notes("pin", topic),
                store.note("pin", topic, 0, "a"),
                *(log.bounds() for _ in range(8)),
                *(log.offset_at(0) for _ in range(8)),
            )
        await assert_fails_in_time(KafkaStore.open(store.config))
    finally:
        broker.thaw()
    await assert_works_again(log)


async def test_broker_frozen_during_a_read_or_an_append_fails_it_in_time(
    broker: KafkaBroker, log: KafkaLog
) -> None:
    async with aclosing(log.read(0, 100)) as batches:
        assert list(await anext(batches)) == at(FIRST, records_of(0, 3))
        broker.freeze()
        try:
            await assert_fails_in_time(anext(batches), log.append(records_of(3, 1)))
        finally:
            broker.thaw()
    await assert_works_again(log)


@pytest.mark.regression("A read of a log that had lost its end waited for ever.")
async def test_log_that_ends_before_it_should_fails_a_read_in_time(log: KafkaLog) -> None:
    async with aclosing(log.read(0, 100)) as batches:
        await anext(batches)
        await assert_fails_in_time(anext(batches))
    await assert_works_again(log)


async def test_leader_that_has_nothing_is_asked_ten_times_a_second(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, asked = PartitionReader._fetch, 0

    async def counted(reader: PartitionReader) -> Any:
        nonlocal asked
        asked += 1
        return await fetch(reader)

    monkeypatch.setattr(PartitionReader, "_fetch", counted)
    monkeypatch.setattr(kafka_reader, "WAIT_MS", 0)  # so that it answers at once
    async with aclosing(log.read(0, 100)) as batches:
        await anext(batches)
        await assert_fails_in_time(anext(batches))
    assert asked < 2 * TIMEOUT_S / kafka_reader.RETRY_S


@pytest.mark.regression("A restart of a broker failed a rebuild.")
async def test_read_goes_on_after_its_broker_was_started_again(broker: KafkaBroker, log: KafkaLog) -> None:
    patient = await KafkaStore.open(kafka_config(broker.bootstrap_servers, request_timeout_s=30))
    async with aclosing(patient.partition_log(log._tp.topic, 0).read(0, 100)) as batches:
        assert list(await anext(batches)) == at(FIRST, records_of(0, 3))
        next_batch = asyncio.ensure_future(anext(batches))
        broker.kill()
        await asyncio.to_thread(broker.start)
        await assert_works_again(log)  # which appends

        assert [record[1:] for record in await next_batch] == records_of(7, 2)
    await patient.close()


async def test_quota_of_the_brokers_slows_a_read_and_ends_none(
    broker: KafkaBroker, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "FETCH_BYTES", 1)
    large = [record._replace(value=bytes(100_000)) for record in records_of(3, 3)]
    bases = [await log.append([record]) for record in large]
    stored = [record for base, one in zip(bases, large, strict=True) for record in at(base, [one])]
    took_s = 0.0
    await set_quota(broker, 60_000)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while took_s < 2 * TIMEOUT_S:  # until a quota, which begins a moment later, was used up
                began_at = monotonic()
                assert (await read_all(log, 0, bases[-1] + 1))[3:] == stored
                took_s = monotonic() - began_at
    finally:
        await set_quota(broker, None)

    await assert_works_again(log)


async def test_cancelled_caller_is_cancelled(broker: KafkaBroker, log: KafkaLog) -> None:
    broker.freeze()
    try:
        for call in (log.append(records_of(3, 1)), log.bounds(), read_all(log, 0, 3), log.fence()):
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    finally:
        broker.thaw()
    await assert_works_again(log)


async def test_broker_that_comes_back_elsewhere_is_found(tmp_path: Path) -> None:
    port = free_port()
    old, new = (KafkaBroker(tmp_path / "kafka", port=at_port) for at_port in (port, free_port()))
    servers = f"{old.bootstrap_servers},{new.bootstrap_servers}"
    with old:
        store = await KafkaStore.open(kafka_config(servers, request_timeout_s=TIMEOUT_S))
        await store_first_records(old.bootstrap_servers, "events")
        log = store.partition_log("events", 0)
        await fence(log)
    with new:
        await assert_works_again(log)
        await log.close()
        await store.close()
