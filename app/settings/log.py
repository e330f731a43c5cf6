"""The settings of the log, which suffice for commands that only read it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from app.settings.section import Section, variables
from app.settings.units import Seconds
from dedupe.login.settings import LoginSettings, Mechanism, SecurityProtocol
from dedupe.model.types import Topic


class KafkaSettings(Section, alias_generator=variables("KAFKA_")):
    """Kafka: how the gateway reaches the cluster and logs in to it."""

    bootstrap_servers: str | None = Field(
        None, description="Brokers as `host:port`, separated by commas; required with `GATEWAY_LOG=kafka`."
    )
    security_protocol: SecurityProtocol = Field(
        "PLAINTEXT", description="How connections are protected and whether there is a login."
    )
    sasl_mechanism: Mechanism = Field(
        "PLAIN",
        description="How the login is made; `AWS_MSK_IAM` needs the extra `msk`.",
    )
    sasl_username: str | None = Field(
        None, description="User name of the login; with `OAUTHBEARER`, the client's id."
    )
    sasl_password: SecretStr | None = Field(
        None, description="Password of the login; with `OAUTHBEARER`, the client's secret."
    )
    sasl_password_file: Path | None = Field(
        None, description="File with the password instead; it is read at each login, so it may change."
    )
    oauth_token_url: str | None = Field(
        None,
        description="Where `OAUTHBEARER` gets tokens: an `https://` endpoint, by OAuth's client credentials; "
        "or a file that another program renews, as `file:///...`.",
    )
    oauth_scope: str | None = Field(None, description="Scope that the endpoint is asked for.")
    oauth_extensions: str = Field(
        "",
        description="What the brokers want to know besides the token, as `NAME=VALUE,NAME=VALUE`: "
        "Confluent Cloud wants `logicalCluster` and `identityPoolId`.",
    )
    oauth_ca_file: Path | None = Field(
        None,
        description="PEM file of the authorities that sign the endpoint's certificate; without it, those of "
        "the system count.",
    )
    ssl_ca_file: Path | None = Field(
        None,
        description="PEM file of the authorities that sign the brokers' certificates; "
        "without it, those of the system count.",
    )
    ssl_cert_file: Path | None = Field(None, description="PEM file of the client certificate.")
    ssl_key_file: Path | None = Field(None, description="PEM file of the client certificate's key.")
    ssl_key_password_file: Path | None = Field(
        None, description="File with the password of that key, if it is encrypted."
    )
    client_rack: str = Field(
        "",
        max_length=249,
        description="The zone of this gateway, as `broker.rack` of brokers names it: where brokers select "
        "replicas by rack, long reads are of a replica in the zone, which saves traffic between zones.",
    )
    request_timeout: Seconds = Field(
        8,
        gt=0,
        lt=30,
        description="How long one commit or one read of Kafka may take; below 30 s. Questions for topics, "
        "leaders and coordinators wait 2.5 s, and longer where the cluster's answers take longer.",
    )  # Kafka ends a takeover after the transaction_timeout_s of dedupe.storage.kafka.config

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that a login breaks."""
        yield from self.login_settings.contradictions()

    @property
    def login_settings(self) -> LoginSettings:
        """How to log in."""
        return LoginSettings.of(self, prefix=self.variable("sasl_username").removesuffix("SASL_USERNAME"))


class LogSettings(Section):
    """Log: where events are stored."""

    kind: Literal["sqlite", "kafka"] = Field(
        "sqlite",
        alias="GATEWAY_LOG",
        description="Where events are stored: on Kafka, or in `sqlite`, embedded in the data folder.",
    )
    data_dir: Path = Field(
        Path("data"),
        description="Folder of the dedupe index and, with `sqlite`, of the log. It is created if it is "
        "missing, and used by one gateway at a time.",
    )
    topic: str = Field(
        "events",
        pattern=r"^[A-Za-z0-9._-]{1,238}$",
        description="Topic of the clean events; refused and conflicting ones go to `<topic>.quarantine`.",
    )
    partitions: int = Field(
        8,
        ge=1,
        le=1024,
        description="Partitions that the clean topic begins with; fixed once it exists, also while it gets "
        "more or fewer by `gateway reshard`.",
    )
    quarantine_partitions: int = Field(
        1, ge=1, le=64, description="Partitions of the quarantine topic; fixed once it exists."
    )
    kafka: KafkaSettings = Field(alias="kafka")

    @property
    def quarantine_topic(self) -> str:
        """The topic beside the clean one."""
        return f"{self.topic}.quarantine"

    @property
    def observed_topic(self) -> Topic:
        """The topic of all decided events of a trial. It has one partition."""
        return Topic(f"{self.topic}.observed", 1)

    @property
    def duplicates_topic(self) -> Topic:
        """The topic of samples of duplicates. It has one partition."""
        return Topic(f"{self.topic}.duplicates", 1)

    @property
    def topics(self) -> tuple[Topic, Topic]:
        """The clean topic and its quarantine, each with the number of its partitions."""
        return (
            Topic(self.topic, self.partitions),
            Topic(self.quarantine_topic, self.quarantine_partitions),
        )

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that these settings break."""
        if self.kind == "kafka":
            if not self.kafka.bootstrap_servers:
                yield "GATEWAY_KAFKA_BOOTSTRAP_SERVERS must be set when GATEWAY_LOG is kafka"
            yield from self.kafka.contradictions()
