"""
Kafka beside Spark's connector: how to connect, and the identity and the offsets of a topic.

The variables of the gateway, GATEWAY_KAFKA_*, configure the connection. The job's `--source` names
the brokers and the topic.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dedupe.login.errors import LoginError
from dedupe.login.login import Login
from dedupe.login.secret_file import read_secret
from dedupe.login.settings import AWS, OAUTH, LoginSettings, Mechanism, SecurityProtocol
from dedupe.model.errors import ConfigurationError
from pipeline.errors import PipelineError, UsageError
from pipeline.sources.token import TokenProvider
from pipeline.sources.topic_id import TopicId, describe_topic

METADATA_TIMEOUT_S = 20.0
POLL_MS = 100
TAIL_OFFSETS = 100
"""A partition has fewer transaction markers than this between two records, even if it moves often."""
REPLACED = {
    "PIPELINE_KAFKA_OAUTH_TOKEN_URL": "GATEWAY_KAFKA_OAUTH_TOKEN_URL",
    "PIPELINE_KAFKA_OAUTH_SCOPE": "GATEWAY_KAFKA_OAUTH_SCOPE",
}
"""Variables of earlier versions, each with the one that the gateway reads, too."""

_ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed"
_JAVA_SECURITY = "org.apache.kafka.common.security"
_AWS_LOGIN = "software.amazon.msk.auth.iam"
_LOGIN_MODULES = {
    "PLAIN": f"{_JAVA_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAVA_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAVA_SECURITY}.scram.ScramLoginModule",
    OAUTH: f"{_JAVA_SECURITY}.oauthbearer.OAuthBearerLoginModule",
    AWS: f"{_AWS_LOGIN}.IAMLoginModule",
}
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})

_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)

P = ParamSpec("P")
T = TypeVar("T")


class KafkaLogin(BaseModel):
    """How to connect to a cluster; names as of the gateway's GATEWAY_KAFKA_*."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    prefix: ClassVar[str] = ""
    """Of the names of its settings in sentences."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: Mechanism = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_password_file: Path | None = None
    oauth_token_url: str | None = None
    oauth_scope: str | None = None
    oauth_extensions: str = ""
    oauth_ca_file: Path | None = None
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_key_password_file: Path | None = None

    @property
    def login_settings(self) -> LoginSettings:
        """How to log in."""
        return LoginSettings.of(self, prefix=self.prefix)

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's connector. Raises UsageError: a file cannot be read."""
        login = self.login_settings
        options: dict[str, str] = {"kafka.security.protocol": self.security_protocol}
        try:
            if login.uses_sasl:
                options |= _sasl_options(login)
            if login.uses_tls:
                options |= _tls_options(login)
        except (LoginError, OSError) as err:
            raise UsageError(str(err)) from err
        return options

    async def client_options(self, brokers: str) -> dict[str, Any]:
        """Return the options of aiokafka's clients. Raises PipelineError: a file of the login is unusable."""
        login = Login(self.login_settings, bootstrap_servers=brokers)
        options: dict[str, Any] = {"security_protocol": self.security_protocol}
        try:
            await login.check()
            options["ssl_context"] = await login.tls_context()
            if login.tokens is not None:
                provider = TokenProvider(login.tokens, login.settings.extensions)
                options |= {"sasl_mechanism": OAUTH, "sasl_oauth_token_provider": provider}
            elif login.settings.uses_sasl:
                options["sasl_mechanism"] = self.sasl_mechanism
                options["sasl_plain_username"] = self.sasl_username
                options["sasl_plain_password"] = await login.password()
        except (LoginError, ConfigurationError) as err:
            raise PipelineError(str(err)) from err
        return options


class KafkaSettings(KafkaLogin, BaseSettings):
    """The login of the gateway's variables, which docs/settings.md describes."""

    model_config = SettingsConfigDict(
        env_prefix="GATEWAY_KAFKA_", env_ignore_empty=True, frozen=True, extra="ignore"
    )
    prefix = "GATEWAY_KAFKA_"

    @classmethod
    def read(cls) -> Self:
        """Return the settings of the environment. Raises UsageError."""
        for old, new in REPLACED.items():
            if os.environ.get(old):
                raise UsageError(f"{old} is no setting any more: set {new} instead")
        try:
            settings = cls()
        except ValidationError as err:
            details = (f"GATEWAY_KAFKA_{e['loc'][0]}".upper() + f": {e['msg']}" for e in err.errors())
            raise UsageError("; ".join(details)) from None
        if broken := list(settings.login_settings.contradictions()):
            raise UsageError("; ".join(broken))
        return settings


def _sasl_options(login: LoginSettings) -> dict[str, str]:
    mechanism = login.sasl_mechanism
    options = {"kafka.sasl.mechanism": mechanism, "kafka.sasl.jaas.config": _jaas_config(login)}
    if mechanism == OAUTH and login.oauth_token_url:
        handler = f"{_JAVA_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
        options["kafka.sasl.login.callback.handler.class"] = handler
        options["kafka.sasl.oauthbearer.token.endpoint.url"] = login.oauth_token_url
    if mechanism == AWS:
        handler = f"{_AWS_LOGIN}.IAMClientCallbackHandler"
        options["kafka.sasl.client.callback.handler.class"] = handler
    return options


def _tls_options(login: LoginSettings) -> dict[str, str]:
    options = {}
    if login.ssl_ca_file:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = login.ssl_ca_file.read_text()
    if login.ssl_cert_file:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = login.ssl_cert_file.read_text()
        options["kafka.ssl.keystore.key"] = _java_key(login, login.ssl_key_file or login.ssl_cert_file)
    return options


def _java_key(login: LoginSettings, file: Path) -> str:
    """Return a private key in the only form that Java 17 reads from PEM: PKCS#8, not encrypted by PBES2."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    password_file, password = login.ssl_key_password_file, None
    if password_file is not None:
        password = read_secret(password_file, login.variable("ssl_key_password_file")).encode()
    pem = _PRIVATE_KEY.search(file.read_bytes())
    is_encrypted = pem is not None and b"ENCRYPTED" in pem[0]
    try:
        key = load_pem_private_key(pem[0] if pem else b"", password if is_encrypted else None)
    except (ValueError, TypeError) as err:
        raise LoginError(f"{file} has no private key that can be read: {err}") from err
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _jaas_config(login: LoginSettings) -> str:
    values: dict[str, str | None] = {}
    if login.uses_endpoint:
        values = {
            "clientId": login.sasl_username,
            "clientSecret": _password(login),
            "scope": login.oauth_scope,
        }
        if login.oauth_ca_file:
            values["ssl.truststore.type"] = "PEM"
            values["ssl.truststore.certificates"] = login.oauth_ca_file.read_text()
    elif login.sasl_mechanism not in {OAUTH, AWS}:
        values = {"username": login.sasl_username, "password": _password(login)}
    if login.sasl_mechanism == OAUTH:
        values |= {f"extension_{name}": value for name, value in login.extensions}
    quoted = [f'{name}="{value.translate(_ESCAPED)}"' for name, value in values.items() if value]
    return " ".join([_LOGIN_MODULES[login.sasl_mechanism], "required", *quoted]) + ";"


def _password(login: LoginSettings) -> str:
    if login.sasl_password_file is None:
        return login.sasl_password or ""
    return read_secret(login.sasl_password_file, login.variable("sasl_password_file"))


def java_properties(logins: Iterable[KafkaLogin]) -> dict[str, str]:
    """Return the system properties without which newer Java clients ask no token endpoint of these."""
    urls = dict.fromkeys(
        login.oauth_token_url or ""
        for login in logins
        if login.login_settings.uses_sasl and login.sasl_mechanism == OAUTH
    )
    return {f"{_ALLOWED}.{place}": ",".join(urls) for place in ("urls", "files")} if urls else {}


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
        errors, given = _ErrorLog(logging.ERROR), kwargs.get("login")
        login = given if isinstance(given, KafkaLogin) else KafkaSettings.read()
        client_log = logging.getLogger("aiokafka")
        client_log.addHandler(errors)
        try:
            # In a thread of its own: a notebook runs an event loop in this one.
            with ThreadPoolExecutor(max_workers=1) as thread:
                return thread.submit(asyncio.run, bounded(call(brokers, topic, *args, **kwargs))).result()
        except (KafkaError, TimeoutError, OSError, NotImplementedError) as err:
            text = f"Kafka at {brokers} did not describe topic {topic!r}: {errors.last or repr(err)}"
            if login.login_settings.uses_token:  # aiokafka does not see the broker's answer to a token
                text += f"; does it take the tokens of {login.oauth_token_url or AWS}?"
            raise PipelineError(text) from err
        finally:
            client_log.removeHandler(errors)

    return run


@_blocking
async def identify_topic(brokers: str, topic: str, *, login: KafkaLogin | None = None) -> TopicId:
    """
    Return the ids of a topic and of its cluster; `login` is the environment's if it is None, here and below.

    Raises:
        PipelineError: Kafka does not answer, is older than 2.8, or has no such topic.
    """
    return await _describe(brokers, topic, login)


@_blocking
async def topic_positions(
    brokers: str, topic: str, *, login: KafkaLogin | None = None
) -> dict[int, PartitionPositions]:
    """
    Return the current offsets of each partition of a topic.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    partitions = await _partitions(brokers, topic, login)
    async with consumer_of(brokers, login, isolation_level="read_committed") as committed:
        starts = await committed.beginning_offsets(partitions)
        stable = await committed.end_offsets(partitions)
    async with consumer_of(brokers, login, isolation_level="read_uncommitted") as uncommitted:
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
    async with consumer_of(brokers) as consumer:
        offsets = await consumer.offsets_for_times(moments_ms)
    return {tp.partition: at.offset for tp, at in offsets.items() if at is not None}


@_blocking
async def committed_offsets(
    brokers: str, topic: str, group: str, *, login: KafkaLogin | None = None
) -> dict[int, int]:
    """
    Return what a consumer group has committed of a topic; a partition without is left out.

    Raises:
        PipelineError: Kafka does not answer, or has no such topic.
    """
    async with consumer_of(brokers, login, group_id=group, enable_auto_commit=False) as consumer:
        committed = {tp: await consumer.committed(tp) for tp in await _partitions(brokers, topic, login)}
    return {tp.partition: offset for tp, offset in committed.items() if offset is not None}


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
    reading: dict[str, Any] = {
        "isolation_level": "read_committed",
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
    }
    async with consumer_of(brokers, **reading) as consumer:
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


async def _partitions(brokers: str, topic: str, login: KafkaLogin | None = None) -> list[TopicPartition]:
    described = await _describe(brokers, topic, login)
    return [TopicPartition(topic, number) for number in range(described.partitions)]


async def _describe(brokers: str, topic: str, login: KafkaLogin | None) -> TopicId:
    options = await (login or KafkaSettings.read()).client_options(brokers)
    client = AIOKafkaClient(bootstrap_servers=brokers, **options)
    try:
        await client.bootstrap()
        described = await describe_topic(client, topic)
    finally:
        await client.close()
    if described.error_code != 0:
        raise PipelineError(f"Kafka at {brokers} has no topic {topic!r}")
    return described


@asynccontextmanager
async def consumer_of(
    brokers: str, login: KafkaLogin | None = None, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    options |= {"bootstrap_servers": brokers}
    options |= await (login or KafkaSettings.read()).client_options(brokers)
    consumer = AIOKafkaConsumer(**options)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()
