"""Settings of the connections to a Kafka cluster."""

from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka.conn import collect_hosts

from dedupe.login.errors import LoginError
from dedupe.login.login import Login
from dedupe.model.errors import ConfigurationError
from dedupe.storage.kafka.answer_limit import AnswerLimit
from dedupe.storage.kafka.fetched import NativeDecode
from dedupe.storage.kafka.record_batch import NativeEncode

CLIENT_ID = "gateway"
"""The client.id of commands; a worker's has its name behind a hyphen."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """How to reach the cluster and how long to wait for it."""

    bootstrap_servers: str
    request_timeout_s: float
    client_id: str = CLIENT_ID
    login: Login = field(default_factory=Login)
    batch_bytes_max: int = 0  # of one commit; readers append nothing
    transaction_timeout_s: float = 30.0  # a takeover that a gateway leaves unfinished is ended by then
    client_rack: str = ""  # the zone, whose replicas are read from
    native_encode: NativeEncode | None = None  # encodes plain record batches
    native_decode: NativeDecode | None = None  # reads responses of plain record batches
    answers: AnswerLimit = field(default_factory=AnswerLimit, compare=False)

    @property
    def answer_s(self) -> float:
        """The limit of a question that any broker, or a coordinator, answers at once."""
        return min(self.answers.seconds, self.request_timeout_s)

    def bootstrap_addresses(self) -> list[Address]:
        """
        Return the bootstrap servers in random order; the default port is 9092.

        Raises:
            ConfigurationError: a port is not a number.
        """
        try:
            return [Address(host, port) for host, port, _ in collect_hosts(self.bootstrap_servers)]
        except ValueError as err:
            raise ConfigurationError(f"{self.bootstrap_servers!r} is no list of host:port: {err}") from err

    def explain(self, err: Exception, limit_s: float | None = None) -> str:
        """Return the text of a failed request's error; its limit is the request timeout or another one."""
        if isinstance(err, TimeoutError):
            return f"no answer within {limit_s or self.request_timeout_s:.3g} s"
        return str(err) if isinstance(err, LoginError) else repr(err)
