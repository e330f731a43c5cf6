"""Claim: a log's calls go through TLS as whom the settings say, by each mechanism; else they are refused."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from aiokafka import TopicPartition

from dedupe.login import tokens
from dedupe.login.errors import LoginError
from dedupe.model.clock import SystemClock
from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.probe import probe_path
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.wire import ProducerIdAndEpoch
from tests.contract.log_contract import at, read_all, records_of
from tests.support.certificates import write_certificate
from tests.support.gateway import Gateway
from tests.support.group import LANES, Worker
from tests.support.kafka import QUICK_START_FLAGS, KafkaBroker, create_topic
from tests.support.processes import HOST, free_port
from tests.support.settings import kafka_config
from tests.support.tokens import Signer, TokenServer, broker_may_read, checked_by_broker
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER, PASSWORD = "gateway", "a-password"
KEY_PASSWORD = "of the key"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'


class Guarded(NamedTuple):
    """A broker that asks strangers who they are, and what it takes."""

    broker: KafkaBroker
    folder: Path
    sasl_port: int
    ssl_port: int
    signer: Signer
    tokens: TokenServer

    def config(self, **changes: Any) -> KafkaConfig:
        """Return a login by a password, or by the secret of an OAuth client."""
        login: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "sasl_username": USER,
            "sasl_password": PASSWORD,
            "oauth_token_url": self.tokens.url,
            "ssl_ca_file": self.folder / "crt.pem",
            "request_timeout_s": 5,
        }
        return kafka_config(f"{HOST}:{self.sasl_port}", **login | changes)

    def config_of_mtls(self, **changes: Any) -> KafkaConfig:
        """Return a login by a certificate whose key is encrypted."""
        login: dict[str, Any] = {
            "security_protocol": "SSL",
            "ssl_ca_file": self.folder / "crt.pem",
            "ssl_cert_file": self.folder / "client.pem",
            "ssl_key_file": self.folder / "client-key.pem",
            "ssl_key_password_file": self.folder / "client-password",
            "request_timeout_s": 5,
        }
        return kafka_config(f"{HOST}:{self.ssl_port}", **login | changes)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder, signer = tmp_path_factory.mktemp("kafka-access"), Signer()
    sasl_port, ssl_port = free_port(), free_port()
    certificate, key, store = folder / "crt.pem", folder / "key.pem", folder / "store.pem"
    write_certificate(certificate, key, "kafka.example.com")
    write_certificate(folder / "client.pem", folder / "client-key.pem", "client", password=KEY_PASSWORD)
    write_certificate(folder / "stranger.pem", folder / "stranger-key.pem", "client")
    (folder / "client-password").write_text(KEY_PASSWORD + "\n")
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    keys = folder / "keys.json"
    keys.write_text(signer.key_set())
    properties = {
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.truststore.location": str(folder / "client.pem"),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    } | checked_by_broker("sasl_ssl", keys)
    for mechanism in MECHANISMS[:-1]:
        name = f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config"
        properties[name] = PLAIN if mechanism == "PLAIN" else SCRAM
    users = [f'{each}=[name={USER},password="{PASSWORD}"]' for each in MECHANISMS[1:-1]]
    with (
        TokenServer(signer, USER, PASSWORD) as tokens,
        KafkaBroker(
            folder / "kafka",
            properties=properties,
            listeners={"SASL_SSL": sasl_port, "SSL": ssl_port},
            format_options=[option for user in users for option in ("--add-scram", user)],
            jvm_flags=[*QUICK_START_FLAGS, *broker_may_read(keys)],
        ) as broker,
    ):
        yield Guarded(broker, folder, sasl_port, ssl_port, signer, tokens)


async def store_and_read(guarded: Guarded, config: KafkaConfig) -> None:
    topic = f"events-{uuid.uuid4().hex[:12]}"
    await create_topic(guarded.broker.bootstrap_servers, topic)
    store = await KafkaStore.open(config)
    log = store.partition_log(topic, 0)
    try:
        await log.fence()
        stored = [*at(await log.append(records_of(0, 3)), records_of(0, 3))]
        stored += at(await log.append(records_of(3, 200)), records_of(3, 200))
        assert await read_all(log, 0, await log.fence()) == stored
    finally:
        await log.close()
        await store.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_events_go_through_tls_as_a_user(guarded: Guarded, mechanism: str) -> None:
    await store_and_read(guarded, guarded.config(sasl_mechanism=mechanism))


async def test_events_go_as_whom_a_certificate_names_whose_key_is_encrypted(guarded: Guarded) -> None:
    await store_and_read(guarded, guarded.config_of_mtls())


async def test_token_comes_from_a_file_that_is_read_at_each_login(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PAUSE_S", 0.0)
    file = tmp_path / "token"
    file.write_text(guarded.signer.token(USER) + "\n")
    config = guarded.config(
        sasl_mechanism="OAUTHBEARER", sasl_username=None, sasl_password=None, oauth_token_url=file.as_uri()
    )
    (address,) = config.bootstrap_addresses()
    (await BrokerConnection.open(config, address)).close()
    for token, why in (
        (guarded.signer.token(USER, life_s=-600), "holds a token that has expired"),
        (Signer().token(USER), "refuses the token"),
        ("", "is empty"),
    ):
        file.write_text(token)
        with pytest.raises(LoginError, match=why) as refused:
            await BrokerConnection.open(config, address)
        assert not token or token not in str(refused.value)
    file.write_text(guarded.signer.token(USER))
    (await BrokerConnection.open(config, address)).close()


def test_gateway_waits_for_the_token_endpoint_and_says_so(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    env = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_TOPIC": f"events-{uuid.uuid4().hex[:12]}",
        "GATEWAY_PARTITIONS": "2",
        "GATEWAY_WORKER_ID": "w1",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{guarded.sasl_port}",
        "GATEWAY_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "GATEWAY_KAFKA_SSL_CA_FILE": str(guarded.folder / "crt.pem"),
        "GATEWAY_KAFKA_SASL_MECHANISM": "OAUTHBEARER",
        "GATEWAY_KAFKA_SASL_USERNAME": USER,
        "GATEWAY_KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "secret"),
        "GATEWAY_KAFKA_OAUTH_TOKEN_URL": guarded.tokens.url,
        "GATEWAY_KAFKA_OAUTH_SCOPE": "kafka",
    }
    gateway = Gateway(tmp_path / "gateway", env)
    guarded.tokens.answer = (503, {"error": "temporarily_unavailable"})
    try:
        gateway.start(wait=False)
        until(lambda: "it answered 503 (temporarily_unavailable)" in gateway.log_path.read_text())
        guarded.tokens.answer = None
        gateway.wait_until_ready()
        event = {"messageId": "first", "type": "track", "event": "Hello"}
        answer = httpx.post(f"{gateway.url}/v1/events", json=event, auth=("key", ""))
        assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "1")
    finally:
        guarded.tokens.answer = None
        gateway.stop()
    log = gateway.log_path.read_text()
    assert PASSWORD not in log
    assert "eyJ" not in log  # how a token begins
    assert "Traceback" not in log


async def test_group_is_joined_through_tls_as_a_user(guarded: Guarded) -> None:
    store = await KafkaStore.open(guarded.config())
    worker = Worker("a", store.membership("events", lanes=LANES, standbys=True, clock=SystemClock()))
    worker.start()
    try:
        await worker.knows("a")
    finally:
        await worker.cut_off()
        await worker.membership.leave()
        await store.close()


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"sasl_password": "another"},
            "the broker refuses the login PLAIN as gateway: Authentication failed",
        ),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": "another"},
            "the broker refuses the login SCRAM-SHA-256 as gateway: Authentication failed",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_password": "another"},
            r"gave no token: it answered 401 \(invalid_client\); are client id, secret and scope right\?",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": "http://127.0.0.1:9/token"},
            "http://127.0.0.1:9/token gave no token: All connection attempts failed",
        ),
        ({"ssl_ca_file": None}, "is not trusted: self.signed certificate; does GATEWAY_KAFKA_SSL_CA_FILE"),
        (
            {"security_protocol": "SASL_PLAINTEXT"},
            "speaks TLS, and GATEWAY_KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT does not",
        ),
    ],
    ids=["password", "password of SCRAM", "secret", "no endpoint", "authority", "no TLS"],
)
async def test_whoever_is_not_believed_hears_why(
    guarded: Guarded, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RetriableError, match=sentence) as refused:
        async with asyncio.timeout(PATIENCE_S):
            await KafkaStore.open(guarded.config(**wrong))
    assert "another" not in str(refused.value)


@pytest.mark.both_loops
@pytest.mark.parametrize(
    "names",
    [(None, None, None), ("stranger.pem", "stranger-key.pem", None)],
    ids=["none", "of a stranger"],
)
async def test_certificate_that_the_broker_does_not_take_is_told(
    guarded: Guarded, names: tuple[str | None, ...]
) -> None:
    files = ("ssl_cert_file", "ssl_key_file", "ssl_key_password_file")
    changes = {each: name and guarded.folder / name for each, name in zip(files, names, strict=True)}
    with pytest.raises(RetriableError, match=r"refuses the TLS connection .*GATEWAY_KAFKA_SSL_CERT_FILE"):
        async with asyncio.timeout(PATIENCE_S):
            await KafkaStore.open(guarded.config_of_mtls(**changes))


@pytest.mark.both_loops
async def test_port_without_tls_is_told(guarded: Guarded) -> None:
    login: dict[str, Any] = {"security_protocol": "SSL", "ssl_ca_file": guarded.folder / "crt.pem"}
    config = kafka_config(guarded.broker.bootstrap_servers, request_timeout_s=60, **login)
    with pytest.raises(LoginError, match="ended the TLS handshake: is it a port without TLS"):
        await BrokerConnection.open(config, *config.bootstrap_addresses())


@pytest.mark.regression(
    "A worker whose login a broker refused gave its partitions up, as if the broker were out of reach."
)
async def test_refused_login_is_an_answer_to_a_probe(guarded: Guarded) -> None:
    topic, older = TopicPartition("events", 0), ProducerIdAndEpoch(1, 0)
    refused = guarded.config(sasl_password="another")
    (leader,) = refused.bootstrap_addresses()
    await probe_path(refused, topic, leader, older)
    with pytest.raises(RetriableError):
        await probe_path(refused, topic, Address(HOST, free_port()), older)
