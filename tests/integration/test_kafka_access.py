"""Claim: a log's calls go through TLS as whom the settings say, by each mechanism; else they are refused."""

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from dedupe.model.clock import SystemClock
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.log import KafkaStore
from tests.contract.log_contract import at, read_all, records_of
from tests.support.certificates import write_certificate
from tests.support.group import LANES, Worker
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.processes import HOST, free_port
from tests.support.settings import kafka_config

pytestmark = pytest.mark.kafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "gateway", "a-password"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, KafkaConfig]]:
    """A broker that asks strangers who they are, and how to reach it."""
    folder = tmp_path_factory.mktemp("kafka-access")
    port, certificate, key, store = free_port(), folder / "crt.pem", folder / "key.pem", folder / "store.pem"
    write_certificate(certificate, key, "kafka.example.com")
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    properties = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    }
    for mechanism in MECHANISMS:
        name = f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config"
        properties[name] = PLAIN if mechanism == "PLAIN" else SCRAM
    users = [f'{each}=[name={USER},password="{PASSWORD}"]' for each in MECHANISMS if each != "PLAIN"]
    with KafkaBroker(
        folder / "kafka",
        properties=properties,
        listeners={"SASL_SSL": port},
        format_options=[option for user in users for option in ("--add-scram", user)],
    ) as broker:
        yield (
            broker,
            kafka_config(
                f"{HOST}:{port}",
                security_protocol="SASL_SSL",
                sasl_username=USER,
                sasl_password=PASSWORD,
                ssl_ca_file=str(certificate),
                request_timeout_s=5,
            ),
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_transactions_go_through_tls_as_a_user(
    guarded: tuple[KafkaBroker, KafkaConfig], mechanism: str
) -> None:
    broker, config = guarded
    topic = f"events-{uuid.uuid4().hex[:12]}"
    await create_topic(broker.bootstrap_servers, topic)
    store = await KafkaStore.open(replace(config, sasl_mechanism=mechanism))
    log = store.partition_log(topic, 0)
    try:
        await log.fence()
        stored = [*at(await log.append(records_of(0, 3)), records_of(0, 3))]
        stored += at(await log.append(records_of(3, 200)), records_of(3, 200))
        assert await read_all(log, 0, await log.fence()) == stored
    finally:
        await log.close()
        await store.close()


async def test_group_is_joined_through_tls_as_a_user(guarded: tuple[KafkaBroker, KafkaConfig]) -> None:
    _, config = guarded
    store = await KafkaStore.open(config)
    worker = Worker("a", store.membership("events", lanes=LANES, standbys=True, clock=SystemClock()))
    worker.start()
    try:
        await worker.knows("a")
    finally:
        await worker.cut_off()
        await worker.membership.leave()
        await store.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl_password": "another"},
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": "another"},
        {"ssl_ca_file": None},
        {"security_protocol": "SASL_PLAINTEXT", "request_timeout_s": 1},
    ],
    ids=["password", "password of SCRAM", "authority", "no TLS"],
)
async def test_whoever_is_not_believed_gets_no_connection(
    guarded: tuple[KafkaBroker, KafkaConfig], wrong: dict[str, Any]
) -> None:
    _, config = guarded
    (address,) = config.bootstrap_addresses()
    with pytest.raises((KafkaError, OSError)):
        async with asyncio.timeout(5):
            await BrokerConnection.open(replace(config, **wrong), address)
