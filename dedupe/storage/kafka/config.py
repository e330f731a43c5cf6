"""Settings of the connections to a Kafka cluster."""

from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka.conn import collect_hosts

from dedupe.login.errors import LoginError
from dedupe.login.login import Login
from dedupe.model.errors import ConfigurationError
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

    def explain(self, err: Exception) -> str:
        """Return the text of a failed request's error."""
        if isinstance(err, TimeoutError):
            return f"no answer within {self.request_timeout_s:g} s"
        return str(err) if isinstance(err, LoginError) else repr(err)
