"""
Where the log is, as settings: all that a command that only reads it needs. And how settings are read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.config.units import Seconds
from dedupe.errors import ConfigurationError

PREFIX = "GATEWAY_"


class LogSettings(BaseSettings):
    """Where the log is: all that a reader of it needs."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
    )

    log: Literal["sqlite", "kafka"] = Field(
        "sqlite", description="where events are stored: `sqlite` (embedded, in the data folder) or `kafka`"
    )
    data_dir: Path = Field(
        Path("data"),
        description="folder of the dedupe index and, with `sqlite`, of the log; created if missing, "
        "used by one gateway at a time",
    )
    topic: str = Field(
        "events",
        pattern=r"^[A-Za-z0-9._-]{1,238}$",
        description="topic of the clean events; refused and conflicting ones go to `<topic>.quarantine`",
    )
    kafka_bootstrap_servers: str | None = Field(
        None, description="brokers as `host:port`, separated by commas; required with `kafka`"
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "PLAIN", description="`PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`"
    )
    kafka_sasl_username: str | None = Field(None, description="user name for SASL")
    kafka_sasl_password: SecretStr | None = Field(None, description="password for SASL")
    kafka_ssl_ca_file: Path | None = Field(
        None,
        description="PEM file of the authorities that sign the brokers' certificates; "
        "without it the system's",
    )
    kafka_ssl_cert_file: Path | None = Field(None, description="PEM file of the client certificate")
    kafka_ssl_key_file: Path | None = Field(None, description="PEM file of the client certificate's key")
    kafka_request_timeout: Seconds = Field(
        8, gt=0, description="how long one request to Kafka, or one commit, may take"
    )

    @property
    def quarantine_topic(self) -> str:
        """The topic beside the clean one."""
        return f"{self.topic}.quarantine"

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that these settings break."""
        if self.log == "kafka" and not self.kafka_bootstrap_servers:
            yield "GATEWAY_KAFKA_BOOTSTRAP_SERVERS must be set when GATEWAY_LOG is kafka"
        uses_sasl = self.kafka_security_protocol.startswith("SASL")
        if self.log == "kafka" and uses_sasl and not (self.kafka_sasl_username and self.kafka_sasl_password):
            yield (
                "GATEWAY_KAFKA_SASL_USERNAME and GATEWAY_KAFKA_SASL_PASSWORD must be set when "
                f"GATEWAY_KAFKA_SECURITY_PROTOCOL is {self.kafka_security_protocol}"
            )

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if broken := list(self.contradictions()):
            raise ValueError("\n".join(broken))
        return self


AnySettings = TypeVar("AnySettings", bound=LogSettings)


def load(kind: type[AnySettings]) -> AnySettings:
    """Read settings from the environment. Raises ConfigurationError, one sentence a line, no values."""
    try:
        return kind()
    except ValidationError as err:
        raise ConfigurationError("\n".join(sentences_of(err))) from None


def sentences_of(err: ValidationError) -> Iterator[str]:
    """Yield what is wrong with settings, without values."""
    for problem in err.errors(include_input=False, include_url=False):
        if problem["type"] == "default_factory_not_called":
            continue  # it follows GATEWAY_WINDOW, whatever else is wrong
        message = problem["msg"].removeprefix("Value error, ")
        yield f"{variable_of(str(problem['loc'][0]))}: {message}" if problem["loc"] else message


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()
