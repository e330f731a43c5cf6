"""Claim: jobs log in to Kafka by a token as by a password, and a login that fails is one sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pipeline.conftest import JobRunner
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.processes import HOST, free_port
from tests.support.records import RecordMaker, fill_topic
from tests.support.tokens import Signer, TokenServer

pytestmark = pytest.mark.kafka

CLIENT, SECRET = "jobs", 'a "secret" \\ of theirs'
OAUTH = "org.apache.kafka.common.security.oauthbearer"
LISTENER = "listener.name.sasl_plaintext.oauthbearer"


class Guarded(NamedTuple):
    """A broker that wants tokens, and who gives them."""

    broker: KafkaBroker
    source: str
    token_url: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder, port, signer = tmp_path_factory.mktemp("kafka-tokens"), free_port(), Signer()
    keys = folder / "keys.json"
    keys.write_text(signer.key_set())
    properties = {
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{LISTENER}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{LISTENER}.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
    }
    flags = [
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{what}={keys.as_uri()}" for what in ("urls", "files")
    ]
    with (
        TokenServer(signer, CLIENT, SECRET) as tokens,
        KafkaBroker(
            folder / "kafka", properties=properties, listeners={"SASL_PLAINTEXT": port}, jvm_flags=flags
        ) as broker,
    ):
        yield Guarded(broker, f"kafka://{HOST}:{port}/events", tokens.url)


@pytest.fixture
def token_login(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login that the broker takes."""
    monkeypatch.setenv("GATEWAY_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("GATEWAY_KAFKA_SASL_MECHANISM", "OAUTHBEARER")
    monkeypatch.setenv("GATEWAY_KAFKA_SASL_USERNAME", CLIENT)
    monkeypatch.setenv("GATEWAY_KAFKA_SASL_PASSWORD", SECRET)
    monkeypatch.setenv("PIPELINE_KAFKA_OAUTH_TOKEN_URL", guarded.token_url)
    monkeypatch.setenv("PIPELINE_KAFKA_OAUTH_SCOPE", "kafka")


@pytest.mark.usefixtures("token_login")
async def test_job_logs_in_by_token(guarded: Guarded, job: JobRunner) -> None:
    maker, servers = RecordMaker(1), guarded.broker.bootstrap_servers
    await create_topic(servers, "events", configs={"retention.ms": "-1"})
    await fill_topic(servers, "events", maker.lanes(maker.event(f"id-{n}") for n in range(20)))

    done = job("audit", "--source", guarded.source)

    assert (done.exit_code, "CLEAN" in done.stdout) == (0, True), done


@pytest.mark.usefixtures("token_login")
@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("GATEWAY_KAFKA_SASL_PASSWORD", "another", "gave no token for Kafka: <HTTPError 401"),
        ("PIPELINE_KAFKA_OAUTH_TOKEN_URL", "", "OAUTHBEARER needs PIPELINE_KAFKA_OAUTH_TOKEN_URL"),
        (
            "PIPELINE_KAFKA_OAUTH_TOKEN_URL",
            "file:///nowhere/token",
            "gave no token for Kafka: FileNotFoundError",
        ),
        ("PIPELINE_KAFKA_OAUTH_TOKEN_URL", "file://FORGED", "does it take the tokens of file:///"),
        ("GATEWAY_KAFKA_SASL_MECHANISM", "PLAIN", "UnsupportedSaslMechanismError"),
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
