"""Settings of the connections to a Kafka cluster."""

import ssl
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka.conn import collect_hosts

from dedupe.model.errors import ConfigurationError

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
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    batch_bytes_max: int = 0  # of one commit; readers append nothing
    transaction_timeout_s: float = 30.0  # a takeover that a gateway leaves unfinished is ended by then

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
        is_late = isinstance(err, TimeoutError)
        return f"no answer within {self.request_timeout_s:g} s" if is_late else repr(err)

    @property
    def uses_sasl(self) -> bool:
        """Whether brokers authenticate the gateway by SASL."""
        return self.security_protocol.startswith("SASL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a new connection, None without TLS. Raises OSError, ssl.SSLError."""
        if self.security_protocol not in ("SSL", "SASL_SSL"):
            return None
        context = ssl.create_default_context(cafile=self.ssl_ca_file)
        if self.ssl_cert_file:
            context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
        return context
