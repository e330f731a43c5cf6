"""
Kafka beside Spark's connector: how to connect, and the identity and the offsets of a topic.

The variables of the gateway, GATEWAY_KAFKA_*, configure the connection. The job's `--source` names
the brokers and the topic.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pipeline.errors import PipelineError, UsageError
from pipeline.sources.token import TokenEndpoint
from pipeline.sources.topic_id import TopicId, describe_topic

METADATA_TIMEOUT_S = 20.0
POLL_MS = 100
TAIL_OFFSETS = 100
"""A partition has fewer transaction markers than this between two records, even if it moves often."""
OAUTH, TOKEN_URL = "OAUTHBEARER", "PIPELINE_KAFKA_OAUTH_TOKEN_URL"

_JAVA_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    OAUTH: "oauthbearer.OAuthBearerLoginModule",
}

P = ParamSpec("P")
T = TypeVar("T")


class KafkaSettings(BaseSettings):
    """
    How to connect to Kafka; docs/settings.md describes the variables, docs/pipeline.md the logins.

    Only the jobs know OAUTHBEARER: user name and password are then the client's id and secret.
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
        """Return the settings of the environment. Raises UsageError."""
        try:
            settings = cls()
        except ValidationError as err:
            details = (f"GATEWAY_KAFKA_{e['loc'][0]}".upper() + f": {e['msg']}" for e in err.errors())
            raise UsageError("; ".join(details)) from None
        if settings.uses_token and settings.oauth_token_url is None:
            raise UsageError(f"{OAUTH} needs {TOKEN_URL}, https:// or file://")
        return settings

    @property
    def uses_token(self) -> bool:
        """Whether the client logs in by a token."""
        return self.security_protocol.startswith("SASL") and self.sasl_mechanism == OAUTH

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's connector."""
        options: dict[str, str] = {"kafka.security.protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            options["kafka.sasl.mechanism"] = self.sasl_mechanism
            options["kafka.sasl.jaas.config"] = self._jaas_config()
            if self.uses_token and self.oauth_token_url is not None:
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
        """Return the options of aiokafka's clients."""
        options: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            if self.uses_token and self.oauth_token_url is not None:
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
        login = {"username": self.sasl_username, "password": self._password}
        if self.uses_token:
            client = {"clientId": self.sasl_username, "clientSecret": self._password}
            login = {name: value for name, value in (client | {"scope": self.oauth_scope}).items() if value}
        quoted = (
            f'{name}="{(value or "").replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
            for name, value in login.items()
        )
        return f"{_JAVA_SECURITY}.{_LOGIN_MODULES[self.sasl_mechanism]} required {' '.join(quoted)};"


class PartitionPositions(NamedTuple):
    """The offsets between which a partition can be read now."""

    start_offset: int
    last_stable_offset: int  # where read_committed ends
    high_watermark: int  # where the log ends; above the last stable offset if a transaction is open


class _ErrorLog(logging.Handler):
    """Keeps the last error that aiokafka logs; its exception says only that no broker is reachable."""

    last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def _blocking(
    call: Callable[Concatenate[str, str, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[str, str, P], T]:
    """Make a call to Kafka synchronous, bounded in time, with a PipelineError for each failure."""

    async def bounded(coroutine: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(METADATA_TIMEOUT_S):
            return await coroutine

    @wraps(call)
    def run(brokers: str, topic: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        errors, login = _ErrorLog(logging.ERROR), KafkaSettings.read()
        client_log = logging.getLogger("aiokafka")
        client_log.addHandler(errors)
        try:
            # In a thread of its own: a notebook runs an event loop in this one.
            with ThreadPoolExecutor(max_workers=1) as thread:
                return thread.submit(asyncio.run, bounded(call(brokers, topic, *args, **kwargs))).result()
        except (KafkaError, TimeoutError, OSError, NotImplementedError) as err:
            text = f"Kafka at {brokers} did not describe topic {topic!r}: {errors.last or repr(err)}"
            if login.uses_token:  # aiokafka does not see the broker's answer to a token
                text += f"; does it take the tokens of {login.oauth_token_url}?"
            raise PipelineError(text) from err
        finally:
            client_log.removeHandler(errors)

    return run


@_blocking
async def identify_topic(brokers: str, topic: str) -> TopicId:
    """
    Return the ids of a topic and of its cluster.

    Raises:
        PipelineError: Kafka does not answer, is older than 2.8, or has no such topic.
    """
    return await _describe(brokers, topic)


@_blocking
async def topic_positions(brokers: str, topic: str) -> dict[int, PartitionPositions]:
    """
    Return the current offsets of each partition of a topic.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    partitions = await _partitions(brokers, topic)
    async with _consumer(brokers, isolation_level="read_committed") as committed:
        starts = await committed.beginning_offsets(partitions)
        stable = await committed.end_offsets(partitions)
    async with _consumer(brokers, isolation_level="read_uncommitted") as uncommitted:
        written = await uncommitted.end_offsets(partitions)
    return {p.partition: PartitionPositions(starts[p], stable[p], written[p]) for p in partitions}


@_blocking
async def offsets_at(brokers: str, topic: str, moment: datetime) -> dict[int, int]:
    """
    Return the first offset of each partition that is as new as a moment; a partition without one is left out.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    moments_ms = dict.fromkeys(await _partitions(brokers, topic), int(moment.timestamp() * 1000))
    async with _consumer(brokers) as consumer:
        offsets = await consumer.offsets_for_times(moments_ms)
    return {tp.partition: at.offset for tp, at in offsets.items() if at is not None}


@_blocking
async def records_ends(brokers: str, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """
    Return the offset after the last record of each range; the range's start if it holds no record.

    Reads the last TAIL_OFFSETS of each range. A partition whose last record lies before them is left out.

    Args:
        ranges: offsets [start, end) by partition.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    begins = {TopicPartition(topic, p): max(start, end - TAIL_OFFSETS) for p, (start, end) in ranges.items()}
    stops = {tp: ranges[tp.partition][1] for tp in begins}
    last = {tp.partition: begin for tp, begin in begins.items() if begin == ranges[tp.partition][0]}
    reading = {"isolation_level": "read_committed", "auto_offset_reset": "none", "enable_auto_commit": False}
    async with _consumer(brokers, **reading) as consumer:
        consumer.assign(list(begins))
        for tp, begin in begins.items():
            consumer.seek(tp, begin)
        left = set(begins)
        while left:
            for tp, records in (await consumer.getmany(*left, timeout_ms=POLL_MS)).items():
                ends = [record.offset + 1 for record in records if record.offset < stops[tp]]
                last |= {tp.partition: ends[-1]} if ends else {}
            left = {tp for tp in left if await consumer.position(tp) < stops[tp]}
    return last


async def _partitions(brokers: str, topic: str) -> list[TopicPartition]:
    described = await _describe(brokers, topic)
    return [TopicPartition(topic, number) for number in range(described.partitions)]


async def _describe(brokers: str, topic: str) -> TopicId:
    client = AIOKafkaClient(bootstrap_servers=brokers, **KafkaSettings.read().client_options())
    try:
        await client.bootstrap()
        described = await describe_topic(client, topic)
    finally:
        await client.close()
    if described.error_code != 0:
        raise PipelineError(f"Kafka at {brokers} has no topic {topic!r}")
    return described


@asynccontextmanager
async def _consumer(brokers: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    options |= {"bootstrap_servers": brokers} | KafkaSettings.read().client_options()
    consumer = AIOKafkaConsumer(**options)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()
