"""
Claim: settings of topics that somebody changes under a running gateway cost at most the events that fit
nowhere; each is told by name, and a topic that was made anew is not taken for the old one.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from dedupe.model.errors import OutcomeUnknownError, RecordsRefusedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import PartitionLog
from tests.conftest import TopicFactory
from tests.contract.log_contract import read_all
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.kafka import create_topic, delete_topics
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S, until_async

PARTITIONS = 2
TOPIC = f"drift-{uuid.uuid4().hex[:8]}"
QUARANTINE = f"{TOPIC}.quarantine"
SAFE = {"retention.ms": "-1", "message.timestamp.before.max.ms": "3600000"}


async def alter(servers: str, topic: str, configs: Mapping[str, str]) -> None:
    """Replace all settings of a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={**SAFE, **configs})
        responses: list[Any] = await admin.alter_configs([resource])
        for response in responses:
            assert [code for code, *_ in response.resources] == [0], response
    finally:
        await admin.close()


def record_of(size_bytes: int) -> NewRecord:
    return NewRecord(int(time.time() * 1000), b"id", b"x" * size_bytes, [("source", b"web")])


@pytest.fixture
async def store(kafka_bootstrap: str) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(kafka_bootstrap, request_timeout_s=60))
    yield store
    await store.close()


async def test_sequence_of_a_refused_batch_stands(
    kafka_bootstrap: str, store: KafkaStore, topic: TopicFactory
) -> None:
    name = await topic(configs=SAFE)
    log = store.partition_log(name, 0)
    end = await log.fence()
    assert await log.append([record_of(100)]) == end
    await alter(kafka_bootstrap, name, {"max.message.bytes": "10000"})

    for _ in range(3):
        with pytest.raises(RecordsRefusedError, match=f"topic {name} .* raise its max.message.bytes"):
            await log.append([record_of(20_000)])
    with pytest.raises(RecordsRefusedError):
        await log.append([record_of(3_000)] * 10)
    assert await log.append([record_of(3_000)] * 2) == end + 1
    assert len(await read_all(log, 0, end + 3)) == 3
    await log.close()


async def append_for_ever(log: PartitionLog) -> None:
    """Append until an error: the leader uses a setting some time after it is known."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await log.append([record_of(10)])


async def test_log_append_time_is_refused_until_it_is_repaired(
    kafka_bootstrap: str, store: KafkaStore, topic: TopicFactory
) -> None:
    name = await topic(configs=SAFE)
    log = store.partition_log(name, 0)
    await log.fence()
    await alter(kafka_bootstrap, name, {"message.timestamp.type": "LogAppendTime"})

    sentence = f"topic {name} has message.timestamp.type=LogAppendTime"
    with pytest.raises(OutcomeUnknownError, match=sentence):
        await append_for_ever(log)
    for _ in range(2):
        with pytest.raises(RetriableError, match=sentence):
            await log.fence()
    await alter(kafka_bootstrap, name, {})
    end = await log.fence()
    assert await log.append([record_of(10)]) == end
    await log.close()


async def test_topic_is_known_by_its_id(kafka_bootstrap: str, store: KafkaStore, topic: TopicFactory) -> None:
    name = await topic(configs=SAFE)
    log = store.partition_log(name, 0)
    await log.fence()
    assert await log.has_same_topic()
    assert len(set(await store.cluster.topic_id(name))) > 1
    await delete_topics(kafka_bootstrap, [name])
    await create_topic(kafka_bootstrap, name, configs=SAFE)
    async with asyncio.timeout(PATIENCE_S):
        while await log.has_same_topic():
            await asyncio.sleep(0.05)
    await log.fence()
    assert await log.has_same_topic()
    await log.close()


# ---- a gateway


@pytest.fixture(scope="module")
def gateway(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    env = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
        "GATEWAY_TOPIC": TOPIC,
        "GATEWAY_PARTITIONS": str(PARTITIONS),
        "GATEWAY_ANSWER_TIMEOUT": "20s",
        "GATEWAY_KAFKA_REQUEST_TIMEOUT": "25s",
    }
    gateway = Gateway(tmp_path_factory.mktemp("drift"), env)
    with gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        yield client


def metrics(gateway: Gateway) -> str:
    return httpx.get(f"{gateway.admin_url}/metrics").text


def failures(gateway: Gateway) -> int:
    stats = gateway.stats()
    return sum(lane["failures"] for lane in (*stats["partitions"], *stats["quarantine"]))


async def test_lowered_limit_costs_only_the_event_that_does_not_fit(
    kafka_bootstrap: str, gateway: Gateway, client: httpx.Client
) -> None:
    before = failures(gateway)
    for name in (TOPIC, QUARANTINE):
        await alter(kafka_bootstrap, name, {"max.message.bytes": "100000"})
    events = [new_event(properties={"text": "x" * 1_000}) for _ in range(300)]
    large = new_event(properties={"text": "x" * 200_000})
    rejected = {**new_event(), "messageId": ["no id"], "properties": {"text": "y" * 200_000}}

    for known in ("0", "300"):
        answer = post(client, "/v1/events", [*events, large, rejected])
        assert answer.headers["Gateway-Duplicates"] == known
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["receipts"]) == 300
        codes = [each["code"] for each in answer.json()["rejected"]]
        assert codes == ["record_too_large", "message_id_invalid"]
    assert failures(gateway) == before

    wrong = f'gateway_topic_setting_wrong{{setting="max.message.bytes",topic="{TOPIC}"}} 1.0'
    await until_async(lambda: wrong in metrics(gateway), lambda: metrics(gateway))
    assert any("max.message.bytes is 100000" in told for told in gateway.stats()["wrong_settings"])
    assert f"topic {TOPIC}: max.message.bytes is 100000" in gateway.log_path.read_text()
    for name in (TOPIC, QUARANTINE):
        await alter(kafka_bootstrap, name, {})


async def test_more_partitions_than_the_pin_says_are_left_alone(
    kafka_bootstrap: str, gateway: Gateway
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.create_partitions({TOPIC: NewPartitions(PARTITIONS + 3)})
    await admin.close()
    gateway.stop()
    gateway.start()
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        answer = post(client, "/v1/events", [new_event() for _ in range(40)])
    assert answer.status_code == 200, answer.text
    assert {receipt["partition"] for receipt in answer.json()["receipts"]} == set(range(PARTITIONS))
    assert f"topic {TOPIC} was begun with {PARTITIONS} partitions" in gateway.log_path.read_text()


async def test_topic_made_anew_answers_no_duplicate_that_is_not_in_it(
    kafka_bootstrap: str, gateway: Gateway, client: httpx.Client
) -> None:
    events = [new_event() for _ in range(40)]
    assert post(client, "/v1/events", events).status_code == 200
    await asyncio.sleep(1.1)
    await delete_topics(kafka_bootstrap, [TOPIC])
    await create_topic(kafka_bootstrap, TOPIC, partitions=PARTITIONS, configs=SAFE)

    answers: list[httpx.Response] = []

    def is_taken() -> bool:
        answers.append(post(client, "/v1/events", events))
        return answers[-1].status_code == 200

    await until_async(is_taken, lambda: answers[-1].text)
    assert answers[-1].headers["Gateway-Accepted"] == "40"
