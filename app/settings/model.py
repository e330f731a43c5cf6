"""
Settings: every GATEWAY_* variable with its description, in sections; docs/settings.md is generated from them.

They are read once at the start, and passed on explicitly; no other module reads the environment. Durations
are seconds, and sizes are bytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from app.settings.admin import AdminSettings
from app.settings.contradictions import contradictions
from app.settings.group import GroupSettings
from app.settings.limits import LimitSettings
from app.settings.log import LogSettings
from app.settings.networks import Names, Networks, is_loopback
from app.settings.section import Section
from app.settings.snapshots import SnapshotSettings
from app.settings.units import DAY, MIB, Bytes, Seconds
from dedupe.model.identity import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from dedupe.model.types import Topic

DEVELOPMENT_SECRET = "public development secret"
"""Constant, so that a developer can delete the data folder and still use a log on Kafka."""


class GatewaySettings(Section):
    """Gateway: where events come in, and from whom."""

    mode: Literal["development", "production"] = Field(
        "production",
        description="`production` refuses what is unsafe; `development` creates missing Kafka topics, needs "
        "no secret and no key file, and warns instead.",
    )
    host: str = Field("127.0.0.1", description="Address that the ingest port listens on.")
    port: int = Field(8080, ge=0, le=65_535, description="Ingest port; 0 takes a free one.")
    public_host: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$",
        description="Host, and port unless 443, under which apps reach the ingest port over https; settings "
        "documents then name it as Segment's `apiHost`.",
    )
    write_keys_file: Path | None = Field(
        None,
        description="YAML or JSON file of write keys and their quotas; required in production. In "
        "development without it, every key is its own source.",
    )
    inputs_file: Path | None = Field(
        None,
        description="YAML or JSON file of topics on Kafka whose records are events, see [inputs](inputs.md).",
    )
    observe: bool = Field(
        False,
        description="Whether every decided event is also appended to the topic `<topic>.observed`, with its "
        "verdict in the header `gw`: a [trial](migration.md) beside another pipeline.",
    )
    duplicate_samples: int = Field(
        0,
        ge=0,
        le=60_000,
        description="How many duplicates of each source each worker notes a minute in the topic "
        "`<topic>.duplicates`: where the original is, when the copy came, why, and from which "
        "[library](pipeline/duplicates.md). `0`: none.",
    )
    write_keys_grace: Seconds = Field(
        DAY,
        ge=0,
        description="How long a write key that vanishes from the file still works, with an alert: as long as "
        "it may take until somebody looks. SDKs give up what they send with an unknown key. `0` ends it at "
        "once, as `enabled: false` in the file always does.",
    )
    identity_secret: SecretStr | None = Field(
        None,
        description=f"Secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes of text that keys all event "
        "identities; required in production. A log can only be continued with the secret it began with.",
    )
    fingerprint_ignore: Names = Field(
        (),
        description="Top-level event fields, separated by commas, that a client changes between tries, "
        "besides `sentAt`, `receivedAt`, `_metadata` and `writeKey`. After a change, retries are compared as "
        "their originals were.",
    )
    trusted_proxies: Networks = Field(
        (),
        description="Networks (CIDR) or addresses of load balancers, separated by commas, whose "
        "`X-Forwarded-For` says who the client is; without them, a load balancer counts as the one client.",
    )
    context_ip: bool = Field(
        True,
        description="Whether events without `context.ip` get the client's address, which "
        "`GATEWAY_TRUSTED_PROXIES` decides behind a load balancer.",
    )

    native: Literal["auto", "off", "required"] = Field(
        "auto",
        description="Whether plain events take the native module, which has the same results for less CPU: "
        "`auto` if the module gateway-native is installed, `required` refuses to start without it.",
    )

    @property
    def is_development(self) -> bool:
        """Whether unsafe things are warned of instead of refused."""
        return self.mode == "development"

    @property
    def identity_key(self) -> bytes:
        """The secret that keys all identities; in development, if none is set, a public one."""
        if self.identity_secret is None:
            assert self.is_development
            return DEVELOPMENT_SECRET.encode()
        return self.identity_secret.get_secret_value().encode()


class IndexSettings(Section):
    """Index: how long and how many ids and sessions are remembered."""

    window: Seconds = Field(
        7 * DAY, description="How long ids are remembered, by the log's own timestamps; at least 24h."
    )
    keys_max: int = Field(
        500_000_000,
        ge=10_000,
        alias="GATEWAY_INDEX_KEYS_MAX",
        description="How many ids are remembered in all; the tighter of this and the window holds.",
    )
    memory: Bytes = Field(
        512 * MIB,
        ge=16 * MIB,
        alias="GATEWAY_INDEX_MEMORY",
        description="Memory of all dedupe indexes of the process together. Their filters come on top: up to "
        "5 bytes for each id remembered, and 9 while a filter is replaced.",
    )
    retention: Seconds = Field(
        default_factory=lambda fields: fields.get("window", 0) + DAY,
        description="How long the log keeps events: older ones are deleted from `sqlite`, and a Kafka topic "
        "must keep at least these. At least the window and one day.",
        json_schema_extra={"default_text": "window + 1d"},
    )
    session_lease: Seconds = Field(
        default_factory=lambda fields: min(30 * DAY, fields.get("retention", 0) - DAY),
        gt=0,
        description="How long after its last event a client session takes new ones; at least a day shorter "
        "than the retention. A rebuild of an index reads the log back to a day before that.",
        json_schema_extra={"default_text": "retention - 1d, at most 30d"},
    )
    sessions_max: int = Field(
        1_000_000,
        ge=1,
        description="How many client sessions are remembered in all; of more, ended ones are evicted first, "
        "then those of the source with the most that were used longest ago. Each takes about 0.25 KB of "
        "disk, twice as many rows at most.",
    )


class AdvancedSettings(Section):
    """Advanced: start, stop, logs and traces."""

    start_timeout: Seconds = Field(
        60, ge=0, description="How long to try to reach the log at start before giving up."
    )
    restore_concurrency: int = Field(
        4, ge=1, description="How many partitions replay the log side by side after a start."
    )
    drain_timeout: Seconds = Field(
        10, gt=0, description="How long open commits may take to finish when the gateway stops."
    )
    logging_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity that is logged."
    )
    logging_format: Literal["text", "json"] = Field(
        "text", description="`text` for people or `json` for collectors; always on stderr."
    )
    traces: bool = Field(
        False,
        description="Whether OpenTelemetry traces are sent, by the usual `OTEL_*` variables; needs the extra "
        "`otel`.",
    )


class Settings(Section, alias_generator=None):
    """All settings of `gateway serve`."""

    gateway: GatewaySettings
    log: LogSettings
    index: IndexSettings
    snapshots: SnapshotSettings
    limits: LimitSettings
    admin: AdminSettings
    group: GroupSettings
    advanced: AdvancedSettings

    def with_partitions(self, partitions: int) -> "Settings":
        """Return the settings of a clean topic that has so many partitions now."""
        return self.model_copy(update={"log": self.log.model_copy(update={"partitions": partitions})})

    @property
    def side_topics(self) -> dict[Topic, str]:
        """The topics of which nothing is promised, each with the setting that wants it."""
        wanted = (
            (self.log.observed_topic, "GATEWAY_OBSERVE", self.gateway.observe),
            (self.log.duplicates_topic, "GATEWAY_DUPLICATE_SAMPLES", self.gateway.duplicate_samples > 0),
        )
        return {topic: setting for topic, setting, is_wanted in wanted if is_wanted}

    @property
    def addresses(self) -> Iterator[tuple[str, int]]:
        """Where the servers listen: the ingest port, the admin port, and probes if they have one."""
        yield self.gateway.host, self.gateway.port
        yield self.admin.host, self.admin.port
        if self.admin.probe_listen is not None:
            yield self.admin.probe_listen

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that the settings break."""
        yield from self.log.contradictions()
        yield from contradictions(self)
        yield from self.limits.contradictions()

    def warnings(self) -> Iterator[str]:
        """Yield one sentence for each setting that only development accepts."""
        if not self.gateway.is_development:
            return
        if self.gateway.identity_secret is None:
            yield "GATEWAY_IDENTITY_SECRET is not set: using the public development secret"
        if self.gateway.write_keys_file is None:
            yield "GATEWAY_WRITE_KEYS_FILE is not set: every write key is accepted and is its own source"
        if not self.admin.has_token and not is_loopback(self.admin.host):
            yield "GATEWAY_ADMIN_TOKEN is not set: every client that reaches the admin port has all rights"
