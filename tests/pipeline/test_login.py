"""Claim: jobs log in to Kafka by the gateway's settings, and a login that fails is one sentence."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from pipeline.runtime.session import with_properties
from pipeline.sources.kafka import KafkaLogin, KafkaSettings, java_properties
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.pipeline.test_audit_input import NAME, event, plain, read_by_a_gateway
from tests.support.certificates import write_certificate
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.processes import HOST, free_port
from tests.support.records import RecordMaker, fill_topic
from tests.support.tokens import Signer, TokenServer, broker_may_read, checked_by_broker

pytestmark = pytest.mark.kafka

CLIENT, SECRET = "jobs", 'a "secret" \\ of theirs'
KEY_PASSWORD = "of the key"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


class Guarded(NamedTuple):
    """A broker that wants tokens or certificates, and who gives tokens."""

    broker: KafkaBroker
    folder: Path
    source: str
    source_of_mtls: str
    token_url: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder, signer = tmp_path_factory.mktemp("kafka-tokens"), Signer()
    sasl_port, ssl_port = free_port(), free_port()
    keys, certificate, key = folder / "keys.json", folder / "crt.pem", folder / "key.pem"
    keys.write_text(signer.key_set())
    write_certificate(certificate, key, "kafka.example.com")
    write_certificate(folder / "client.pem", folder / "client-key.pem", "client", password=KEY_PASSWORD)
    (folder / "secret").write_text(SECRET)
    (folder / "key-password").write_text(KEY_PASSWORD)
    (folder / "store.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    properties = {
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL"
        ),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "store.pem"),
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "client.pem"),
    } | checked_by_broker("sasl_plaintext", keys)
    with (
        TokenServer(signer, CLIENT, SECRET, certificate=(certificate, key)) as tokens,
        KafkaBroker(
            folder / "kafka",
            properties=properties,
            listeners={"SASL_PLAINTEXT": sasl_port, "SSL": ssl_port},
            jvm_flags=broker_may_read(keys),
        ) as broker,
    ):
        asyncio.run(store_events(broker.bootstrap_servers))
        source = "kafka://{}:{}/events"
        yield Guarded(
            broker, folder, source.format(HOST, sasl_port), source.format(HOST, ssl_port), tokens.url
        )


@pytest.fixture
def token_login(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login that the broker takes."""
    for name, value in {
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "OAUTHBEARER",
        "SASL_USERNAME": CLIENT,
        "SASL_PASSWORD_FILE": str(guarded.folder / "secret"),
        "OAUTH_TOKEN_URL": guarded.token_url,
        "OAUTH_SCOPE": "kafka",
        "OAUTH_EXTENSIONS": "logicalCluster=lkc-1,identityPoolId=pool-1",
        "OAUTH_CA_FILE": str(guarded.folder / "crt.pem"),
    }.items():
        monkeypatch.setenv(f"GATEWAY_KAFKA_{name}", value)


async def store_events(servers: str) -> None:
    maker = RecordMaker(1)
    await create_topic(servers, "events", configs={"retention.ms": "-1"})
    await fill_topic(servers, "events", maker.lanes(maker.event(f"id-{n}") for n in range(20)))


@pytest.mark.usefixtures("token_login")
def test_job_logs_in_by_token(guarded: Guarded, job: JobRunner) -> None:
    done = job("audit", "--source", guarded.source)

    assert (done.exit_code, "CLEAN" in done.stdout) == (0, True), done


def test_job_logs_in_by_a_certificate_whose_key_is_encrypted(
    guarded: Guarded, job: JobRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_KAFKA_SECURITY_PROTOCOL", "SSL")
    for name, file in {
        "SSL_CA_FILE": "crt.pem",
        "SSL_CERT_FILE": "client.pem",
        "SSL_KEY_FILE": "client-key.pem",
        "SSL_KEY_PASSWORD_FILE": "key-password",
    }.items():
        monkeypatch.setenv(f"GATEWAY_KAFKA_{name}", str(guarded.folder / file))

    done = job("audit", "--source", guarded.source_of_mtls)

    assert (done.exit_code, "CLEAN" in done.stdout) == (0, True), done


async def test_audit_logs_in_to_the_cluster_of_an_input_as_its_file_says(
    guarded: Guarded, job: JobRunner, tmp_path: Path
) -> None:
    servers, raw, clean = guarded.broker.bootstrap_servers, "raw", "clean-of-raw"
    await create_topic(servers, raw, configs={"retention.ms": "-1"})
    cluster = {
        "bootstrap_servers": guarded.source_of_mtls.split("/")[2],
        "security_protocol": "SSL",
        "ssl_ca_file": str(guarded.folder / "crt.pem"),
        "ssl_cert_file": str(guarded.folder / "client.pem"),
        "ssl_key_file": str(guarded.folder / "client-key.pem"),
        "ssl_key_password_file": str(guarded.folder / "key-password"),
    }
    sent = plain(event("a"), event("b"))
    inputs_file = await read_by_a_gateway(servers, clean, raw, sent, tmp_path, cluster=cluster)

    options = ["audit", "--source", f"kafka://{servers}/{clean}", "--input", NAME, "--inputs-file"]
    done = job(*options, inputs_file)
    assert (done.exit_code, "and 2 offsets of input raw" in done.stdout) == (0, True), done

    for field, value, sentence in (
        ("ssl_key_file", None, "ssl_key_file"),
        ("sasl_user", "x", "input raw: cluster: sasl_user: Extra inputs are not permitted"),
    ):
        wrong = json.loads(inputs_file.read_text())
        wrong["inputs"][0]["cluster"] |= {field: value, "ssl_cert_file": None}
        (tmp_path / "wrong.yaml").write_text(json.dumps(wrong))
        done = job(*options, tmp_path / "wrong.yaml")
        assert done.exit_code == 2, done
        assert sentence.lower() in done.stderr.splitlines()[-1].lower()


@pytest.mark.usefixtures("token_login")
def test_java_may_ask_the_endpoint(guarded: Guarded, spark: SparkSession) -> None:
    properties = java_properties([KafkaSettings.read()])
    assert properties[ALLOWED] == guarded.token_url
    own = KafkaLogin(
        security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", oauth_token_url="https://own"
    )
    assert java_properties([KafkaSettings.read(), own])[ALLOWED] == f"{guarded.token_url},https://own"
    assert java_properties([KafkaLogin()]) == {}
    assert with_properties("-Xss2m", {"a.b": "c"}) == "-Xss2m -Da.b=c"


@pytest.mark.usefixtures("token_login")
@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("GATEWAY_KAFKA_SASL_USERNAME", "stranger", "gave no token: it answered 401 (invalid_client)"),
        ("GATEWAY_KAFKA_SASL_PASSWORD_FILE", "/nowhere", "SASL_PASSWORD_FILE (/nowhere) cannot be read"),
        ("GATEWAY_KAFKA_SASL_PASSWORD_FILE", "", "SASL_PASSWORD must be set (the client's id and secret)"),
        ("GATEWAY_KAFKA_OAUTH_TOKEN_URL", "", "GATEWAY_KAFKA_OAUTH_TOKEN_URL must be set when"),
        ("GATEWAY_KAFKA_OAUTH_TOKEN_URL", "file:///nowhere", "OAUTH_TOKEN_URL (/nowhere) cannot be read"),
        ("GATEWAY_KAFKA_OAUTH_TOKEN_URL", "file://FORGED", "does it take the tokens of file:///"),
        ("GATEWAY_KAFKA_OAUTH_CA_FILE", "", "GATEWAY_KAFKA_OAUTH_CA_FILE"),
        ("GATEWAY_KAFKA_SASL_MECHANISM", "PLAIN", "OAUTH_TOKEN_URL is used with"),
        (
            "PIPELINE_KAFKA_OAUTH_TOKEN_URL",
            "https://old",
            "OAUTH_TOKEN_URL is no setting any more: set GATEWAY_KAFKA_OAUTH_TOKEN_URL instead",
        ),
    ],
)
def test_login_that_fails_is_one_sentence(
    variable: str,
    value: str,
    sentence: str,
    guarded: Guarded,
    job_without_spark: JobRunner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text(Signer().token(CLIENT))
    monkeypatch.setenv(variable, value.replace("FORGED", str(tmp_path / "token")))

    done = job_without_spark("audit", "--source", guarded.source)

    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("pipeline: ")
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


async def test_an_option_of_the_consumer_reaches_the_clients_that_read(
    kafka_bootstrap: str, topic: TopicFactory, job: JobRunner, tmp_path: Path
) -> None:
    """The client that reads refuses a number that is none, and a rack changes nothing here."""
    name = await topic("options", configs={"retention.ms": "-1"})
    maker = RecordMaker(1)
    await fill_topic(kafka_bootstrap, name, maker.lanes([maker.event("id-1")]))
    command = ["archive", "--source", f"kafka://{kafka_bootstrap}/{name}", "--once", "--format", "parquet"]

    stored = job(
        *command, "--out", tmp_path / "a", "--kafka", "client.rack=eu-1a", "--kafka", "minPartitions=2"
    )
    refused = job(*command, "--out", tmp_path / "b", "--kafka", "fetch.min.bytes=many")

    assert (stored.exit_code, refused.exit_code) == (0, 2), (stored, refused)
    assert "1 records archived" in stored.stdout
