"""The broker of the tests is a real Kafka: it decides transactions, and it keeps data over restarts."""

import asyncio
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError

from tests.conftest import TopicFactory
from tests.support import kafka
from tests.support.kafka import KafkaBroker, KafkaBrokerError, create_topic
from tests.support.waiting import PATIENCE_S


async def read_committed(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    """What is committed in partition 0, read until the last stable offset."""
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed")
    values: list[bytes | None] = []
    async with asyncio.timeout(PATIENCE_S), consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                values.extend(record.value for record in records)
    return values


async def test_aborted_batch_is_invisible_and_committed_one_is_not(
    kafka_bootstrap: str, topic: TopicFactory
) -> None:
    name = await topic()
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=name)
    async with producer:
        async with producer.transaction():
            await producer.send_and_wait(name, b"committed-1", partition=0)
            await producer.send_and_wait(name, b"committed-2", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(name, b"aborted", partition=0)
        await producer.abort_transaction()

    assert await read_committed(kafka_bootstrap, name) == [b"committed-1", b"committed-2"]


async def test_topic_has_the_partitions_and_configs_asked_for(
    kafka_bootstrap: str, topic: TopicFactory
) -> None:
    name = await topic("events", partitions=3, configs={"max.message.bytes": "1000"})

    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
        assert await producer.partitions_for(name) == {0, 1, 2}
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(name, os.urandom(2_000), partition=0)


async def test_topic_that_exists_is_refused(kafka_bootstrap: str, topic: TopicFactory) -> None:
    name = await topic()

    with pytest.raises(TopicAlreadyExistsError):
        await create_topic(kafka_bootstrap, name)


async def test_frozen_broker_answers_nothing_until_thawed(private_kafka_broker: KafkaBroker) -> None:
    await create_topic(private_kafka_broker.bootstrap_servers, "events")
    producer = AIOKafkaProducer(bootstrap_servers=private_kafka_broker.bootstrap_servers)
    async with asyncio.timeout(PATIENCE_S), producer:
        await producer.send_and_wait("events", b"before", partition=0)
        private_kafka_broker.freeze()
        delivery = await producer.send("events", b"meanwhile", partition=0)
        done_while_frozen, _ = await asyncio.wait([delivery], timeout=0.5)
        private_kafka_broker.thaw()
        await delivery

    assert not done_while_frozen
    assert await read_committed(private_kafka_broker.bootstrap_servers, "events") == [b"before", b"meanwhile"]


@pytest.mark.parametrize("end", [KafkaBroker.stop, KafkaBroker.kill])
async def test_restarted_broker_keeps_address_and_data(
    private_kafka_broker: KafkaBroker, end: Callable[[KafkaBroker], None]
) -> None:
    address = private_kafka_broker.bootstrap_servers
    await create_topic(address, "events")
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        await producer.send_and_wait("events", b"before", partition=0)
    end(private_kafka_broker)
    assert not private_kafka_broker.is_running
    private_kafka_broker.start()

    assert private_kafka_broker.bootstrap_servers == address
    assert await read_committed(address, "events") == [b"before"]


@pytest.mark.kafka
def test_broker_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time; from tests.support.kafka import KafkaBroker;"
        "broker = KafkaBroker(pathlib.Path(sys.argv[1])); broker.start();"
        "print(broker.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "kafka")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=kafka.ROOT, text=True) as parent:
        assert parent.stdout is not None
        broker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        # A pidfd becomes readable when its process ends.
        ended, _, _ = select.select([broker], [], [], PATIENCE_S)
        assert ended
    finally:
        os.close(broker)


@pytest.mark.kafka
def test_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka", properties={"num.network.threads": "none"})

    with pytest.raises(KafkaBrokerError, match=r"(?s)(formatted|ended with 1).*num\.network\.threads"):
        broker.start()

    assert not broker.is_running


def test_missing_jars_are_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "java")

    with pytest.raises(KafkaBrokerError, match="run `make test` once"):
        KafkaBroker(tmp_path / "kafka", libs=tmp_path / "libs").start()
