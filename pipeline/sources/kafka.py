"""
What jobs know of Kafka beside Spark's connector: how to connect, and where a topic stands.

The connection is configured by the gateway's own variables, GATEWAY_KAFKA_*; the brokers and the
topic stand in the job's `--source`.
"""

import asyncio
import logging
import ssl
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pipeline.errors import PipelineError, UsageError
from pipeline.sources.token import TokenEndpoint
from pipeline.sources.topic_id import TopicId, describe_topic

METADATA_TIMEOUT_S = 20.0
POLL_MS = 100
LOOK_BACK = 100
"""Offsets: more markers than a partition changes hands between two of its records, but in a bad dream."""
OAUTH, TOKEN_URL = "OAUTHBEARER", "PIPELINE_KAFKA_OAUTH_TOKEN_URL"

_JAVA_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    OAUTH: "oauthbearer.OAuthBearerLoginModule",
}

T = TypeVar("T")


class KafkaSettings(BaseSettings):
    """
    How to reach Kafka; docs/settings.md says what each variable means.

    OAUTHBEARER is the jobs' alone: user name and password are the client's id and secret there.
    """

    model_config = SettingsConfigDict(
        env_prefix="GATEWAY_KAFKA_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    oauth_token_url: str | None = Field(None, validation_alias=TOKEN_URL)
    oauth_scope: str | None = Field(None, validation_alias="PIPELINE_KAFKA_OAUTH_SCOPE")
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None

    @classmethod
    def read(cls) -> Self:
        """Return what the environment says. Raises UsageError."""
        try:
            found = cls()
        except ValidationError as err:
            told = (f"GATEWAY_KAFKA_{e['loc'][0]}".upper() + f": {e['msg']}" for e in err.errors())
            raise UsageError("; ".join(told)) from None
        if found.wants_token and found.oauth_token_url is None:
            raise UsageError(f"{OAUTH} needs {TOKEN_URL}, https:// or file://")
        return found

    @property
    def wants_token(self) -> bool:
        """Whether the login is by a token."""
        return self.security_protocol.startswith("SASL") and self.sasl_mechanism == OAUTH

    def spark_options(self) -> dict[str, str]:
        """Return the connector's options."""
        options: dict[str, str] = {"kafka.security.protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            options["kafka.sasl.mechanism"] = self.sasl_mechanism
            options["kafka.sasl.jaas.config"] = self._jaas_config()
            if self.wants_token and self.oauth_token_url is not None:
                handler = f"{_JAVA_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
                options["kafka.sasl.login.callback.handler.class"] = handler
                options["kafka.sasl.oauthbearer.token.endpoint.url"] = self.oauth_token_url
        if self.security_protocol.endswith("SSL"):
            if self.ssl_ca_file:
                options["kafka.ssl.truststore.type"] = "PEM"
                options["kafka.ssl.truststore.certificates"] = self.ssl_ca_file.read_text()
            if self.ssl_cert_file and self.ssl_key_file:
                options["kafka.ssl.keystore.type"] = "PEM"
                options["kafka.ssl.keystore.certificate.chain"] = self.ssl_cert_file.read_text()
                options["kafka.ssl.keystore.key"] = self.ssl_key_file.read_text()
        return options

    def client_options(self) -> dict[str, Any]:
        """Return aiokafka's options."""
        options: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            if self.wants_token and self.oauth_token_url is not None:
                options["sasl_oauth_token_provider"] = TokenEndpoint(
                    self.oauth_token_url, self.sasl_username or "", self._password, self.oauth_scope
                )
            else:
                options["sasl_plain_username"] = self.sasl_username
                options["sasl_plain_password"] = self._password
        if self.security_protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=self.ssl_ca_file)
            if self.ssl_cert_file and self.ssl_key_file:
                context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
            options["ssl_context"] = context
        return options

    @property
    def _password(self) -> str:
        return self.sasl_password.get_secret_value() if self.sasl_password else ""

    def _jaas_config(self) -> str:
        told = {"username": self.sasl_username, "password": self._password}
        if self.wants_token:
            told = {"clientId": self.sasl_username, "clientSecret": self._password, "scope": self.oauth_scope}
            told = {name: value for name, value in told.items() if value}
        quoted = (
            f'{name}="{(value or "").replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
            for name, value in told.items()
        )
        return f"{_JAVA_SECURITY}.{_LOGIN_MODULES[self.sasl_mechanism]} required {' '.join(quoted)};"


class Standing(NamedTuple):
    """Where one partition stands."""

    start_offset: int
    last_stable_offset: int  # readers of committed records get this far
    high_watermark: int  # beyond it only by what belongs to open transactions

    @property
    def undecided(self) -> int:
        """How many offsets wait behind an open transaction."""
        return self.high_watermark - self.last_stable_offset


def standings(brokers: str, topic: str) -> dict[int, Standing]:
    """
    Return where each partition of a topic stands now.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    return _ask(brokers, topic, _standings(brokers, topic))


def identify_topic(brokers: str, topic: str) -> TopicId:
    """
    Return what a topic has in common with no other one, of this cluster or another.

    Raises:
        PipelineError: Kafka does not answer, is older than 2.8, or has no such topic.
    """
    return _ask(brokers, topic, _identify(brokers, topic))


def offsets_at(brokers: str, topic: str, moment: datetime) -> dict[int, int]:
    """
    Return of each partition the first offset that is as new as this; none where all are older.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    return _ask(brokers, topic, _offsets_at(brokers, topic, moment))


def records_ends(brokers: str, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """
    Return of each range, by partition, what follows its last record, or its start if it has none.

    There is nothing of a partition of which that is unknown.

    Of a range only the last LOOK_BACK offsets are looked at, among which markers may stand.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    return _ask(brokers, topic, _records_ends(brokers, topic, ranges))


class _Heard(logging.Handler):
    """What aiokafka complains of: it raises that no broker could be reached, and logs why."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Remember it."""
        self.last = record.getMessage()


def _ask(brokers: str, topic: str, answer: Coroutine[Any, Any, T]) -> T:
    heard, login = _Heard(), KafkaSettings.read()
    client_log = logging.getLogger("aiokafka")
    client_log.addHandler(heard)
    try:
        # In a thread of its own: a notebook's has an event loop already.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, answer).result()
    except (KafkaError, TimeoutError, OSError, NotImplementedError) as err:
        told = f"Kafka at {brokers} did not tell of topic {topic!r}: {heard.last or repr(err)}"
        if login.wants_token:  # aiokafka does not see a broker's answer to a token
            told += f"; does it take the tokens of {login.oauth_token_url}?"
        raise PipelineError(told) from err
    finally:
        client_log.removeHandler(heard)


async def _identify(brokers: str, topic: str) -> TopicId:
    async with asyncio.timeout(METADATA_TIMEOUT_S):
        admin = AIOKafkaAdminClient(bootstrap_servers=brokers, **KafkaSettings.read().client_options())
        try:
            await admin.start()
            found = await describe_topic(admin, topic)
        finally:
            await admin.close()
    if found.error_code != 0:
        raise PipelineError(f"Kafka at {brokers} has no topic {topic!r}")
    return found


async def _offsets_at(brokers: str, topic: str, moment: datetime) -> dict[int, int]:
    async with asyncio.timeout(METADATA_TIMEOUT_S):
        partitions = await _partitions(brokers, topic)
        consumer = AIOKafkaConsumer(bootstrap_servers=brokers, **KafkaSettings.read().client_options())
        try:
            await consumer.start()
            moment_ms = int(moment.timestamp() * 1000)
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, moment_ms))
        finally:
            await consumer.stop()
    return {tp.partition: place.offset for tp, place in found.items() if place is not None}


async def _records_ends(brokers: str, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    begins = {TopicPartition(topic, p): max(start, end - LOOK_BACK) for p, (start, end) in ranges.items()}
    stops = {tp: ranges[tp.partition][1] for tp in begins}
    found = {tp.partition: begin for tp, begin in begins.items() if begin == ranges[tp.partition][0]}
    async with asyncio.timeout(METADATA_TIMEOUT_S):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=brokers,
            isolation_level="read_committed",
            auto_offset_reset="none",
            enable_auto_commit=False,
            **KafkaSettings.read().client_options(),
        )
        try:
            await consumer.start()
            consumer.assign(list(begins))
            for tp, begin in begins.items():
                consumer.seek(tp, begin)
            left = set(begins)
            while left:
                for tp, records in (await consumer.getmany(*left, timeout_ms=POLL_MS)).items():
                    ends = [record.offset + 1 for record in records if record.offset < stops[tp]]
                    found |= {tp.partition: ends[-1]} if ends else {}
                left = {tp for tp in left if await consumer.position(tp) < stops[tp]}
        finally:
            await consumer.stop()
    return found


async def _standings(brokers: str, topic: str) -> dict[int, Standing]:
    async with asyncio.timeout(METADATA_TIMEOUT_S):
        partitions = await _partitions(brokers, topic)
        starts, stable = await _offsets(brokers, partitions, "read_committed")
        _, written = await _offsets(brokers, partitions, "read_uncommitted")
    return {p.partition: Standing(starts[p], stable[p], written[p]) for p in partitions}


async def _partitions(brokers: str, topic: str) -> list[TopicPartition]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers, **KafkaSettings.read().client_options())
    try:
        await admin.start()
        description = (await admin.describe_topics([topic]))[0]
    finally:
        await admin.close()
    if description["error_code"] != 0:
        raise PipelineError(f"Kafka at {brokers} has no topic {topic!r}")
    return [TopicPartition(topic, found["partition"]) for found in description["partitions"]]


async def _offsets(
    brokers: str, partitions: list[TopicPartition], isolation_level: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=brokers, isolation_level=isolation_level, **KafkaSettings.read().client_options()
    )
    try:
        await consumer.start()
        return await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    finally:
        await consumer.stop()
