"""
Settings: every GATEWAY_* variable and what it means. Those of the log alone are in
app.config.log_settings, those of a group in app.config.group_settings, those of the admin port in
app.config.admin_settings; which values exclude each other says app.config.contradictions.

Read once, at start, and passed on explicitly; no other module looks at the environment. Durations
are seconds and sizes are bytes once parsed. The descriptions here are the only source of README's
table (app.config.settings_table).
"""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from app.config.admin_settings import AdminSettings
from app.config.contradictions import contradictions
from app.config.networks import Network, is_loopback, parse_networks
from app.config.units import (
    DAY,
    GIB,
    KIB,
    MIB,
    Bytes,
    Seconds,
    format_size,
)
from dedupe.identity import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from dedupe.types import Stream

DEVELOPMENT_SECRET = "public development secret"
"""Fixed, so that an emptied data folder does not lock a developer out of a log that still exists."""

QUARANTINE_RECORD_BYTES_MAX = 256 * KIB
"""64 KiB of a refused event, every byte of it escaped, and its envelope."""


def _none_for_none(value: object) -> object:
    return None if value == "none" else value


_OR_NONE = BeforeValidator(_none_for_none)
Limit: TypeAlias = Annotated[Annotated[float, Field(gt=0)] | None, _OR_NONE]
ShareLimit: TypeAlias = Annotated[Annotated[float, Field(gt=0, le=1)] | None, _OR_NONE]
SizeLimit: TypeAlias = Annotated[Annotated[Bytes, Field(gt=0)] | None, _OR_NONE]


def _in_production(default: float, description: str) -> Any:
    """Return a field that limits nothing in development, unless it is set."""
    shown = format_size(int(default)) if default > MIB else f"{default:g}"
    return Field(
        default_factory=lambda fields: default if fields.get("mode") == "production" else None,
        description=description,
        json_schema_extra={"default_text": f"`{shown}` in production"},
    )


class Settings(AdminSettings):
    """Everything `gateway serve` can be told."""

    mode: Literal["development", "production"] = Field(
        "production",
        description="`production` refuses what is unsafe; `development` creates missing Kafka topics, "
        "needs no secret and no key file, and warns instead",
    )
    host: str = Field("127.0.0.1", description="address the ingest port listens on")
    port: int = Field(8080, ge=0, le=65_535, description="ingest port; 0 takes a free one")
    public_host: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$",
        description="host, and port unless 443, under which apps reach the ingest port over https; "
        "settings documents then name it as Segment's `apiHost`",
    )
    write_keys_file: Path | None = Field(
        None,
        description="YAML or JSON file of write keys; required in production. "
        "In development without it, every key is its own source",
    )
    write_keys_interval: Seconds = Field(
        1, gt=0, description="how often that file is looked at; a change is used after it has rested as long"
    )
    quota_requests: Limit = _in_production(
        1_000,
        "requests a second of a write key without a quota of its own; `none`: no limit, as in development. "
        "The defaults are a multiple of what a large app sends, and leave room for other keys",
    )
    quota_events: Limit = _in_production(10_000, "its events a second, duplicates included")
    quota_bytes: SizeLimit = _in_production(
        16 * MIB, "its bytes a second, of what is stored or of decompressed bodies, whichever is more"
    )
    quota_burst: Seconds = Field(10, gt=0, description="how many seconds' worth of each may come at once")
    quota_penalty: Seconds = Field(
        0.5,
        ge=0,
        le=3,
        description="how long the 429 of a used-up quota, or the 503 `memory_full`, is held back, so that a "
        "client that ignores `Retry-After` cannot crowd the others out",
    )
    quota_index_share: ShareLimit = _in_production(
        0.5,
        "the most of `GATEWAY_INDEX_KEYS_MAX` that its new events may take within a window: with the "
        "defaults 31 million at once and 361 a second, 250 million in 7 days",
    )
    identity_secret: SecretStr | None = Field(
        None,
        description=f"{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes of text that key all event "
        "identities; required in production. A log can only be continued with the secret it began with",
    )
    fingerprint_ignore: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="top-level event fields, separated by commas, that a client changes between tries "
        "(besides `sentAt`, `receivedAt`, `_metadata` and `writeKey`); after a change, retries are "
        "compared as their originals were",
    )
    partitions: int = Field(
        8, ge=1, le=1024, description="partitions of the clean topic; fixed once it exists"
    )
    quarantine_partitions: int = Field(
        1, ge=1, le=64, description="partitions of the quarantine topic; fixed once it exists"
    )

    window: Seconds = Field(
        7 * DAY, description="how long ids are remembered, by the log's own timestamps; at least 24h"
    )
    index_keys_max: int = Field(
        500_000_000,
        ge=10_000,
        description="how many ids are remembered in all; the tighter of this and the window holds",
    )
    index_memory: Bytes = Field(
        512 * MIB,
        ge=16 * MIB,
        description="memory of all dedupe indexes of the process together; their filters come on top, up to "
        "5 bytes for each id remembered, and 9 while a filter is replaced",
    )
    retention: Seconds = Field(
        default_factory=lambda fields: fields.get("window", 0) + DAY,
        description="how long the log keeps events: older ones are deleted from `sqlite`, and a Kafka "
        "topic must keep at least these; at least the window and one day",
        json_schema_extra={"default_text": "window + 1d"},
    )
    session_lease: Seconds = Field(
        default_factory=lambda fields: min(30 * DAY, fields.get("retention", 0) - DAY),
        gt=0,
        description="how long after its last event a client session takes new ones; at least a day shorter "
        "than the retention. Rebuilding an index reads the log back to a day before that",
        json_schema_extra={"default_text": "retention - 1d, at most 30d"},
    )
    sessions_max: int = Field(
        1_000_000,
        ge=1,
        description="how many client sessions are remembered in all; of more, those used longest ago expire. "
        "Each takes about 0.2 KB of disk, twice as many rows at most",
    )
    clock_jump_max: Seconds = Field(
        default_factory=lambda fields: fields.get("window", 0) / 2,
        gt=0,
        description="how far this machine's clock may be ahead of the time a `sqlite` log was last in use; "
        "a start with one further ahead is refused. A wrong clock within it shortens the window by as much",
        json_schema_extra={"default_text": "window / 2"},
    )
    clock_accept: date | None = Field(
        None,
        description="today's date in UTC (`YYYY-MM-DD`), to say that a clock further ahead is right; it "
        "vouches for that date, the day before and the day after",
    )
    disk_free_min: Bytes = Field(
        1 * GIB,
        description="with less free disk space than this under the data folder, requests get 503",
    )
    disk_check_interval: Seconds = Field(1, gt=0, description="how often free disk space is looked at")
    trim_interval: Seconds = Field(10, gt=0, description="how often expired events are deleted from `sqlite`")
    trim_records_max: int = Field(
        5_000, ge=1, description="how many of a partition's are deleted before commits get their turn"
    )

    body_bytes_max: Bytes = Field(8 * MIB, ge=1 * KIB, description="largest request body, decompressed")
    body_compressed_bytes_max: Bytes = Field(
        4 * MIB, ge=1 * KIB, description="largest request body as sent, if compressed"
    )
    body_keyless_bytes_max: Bytes = Field(
        1 * MIB,
        ge=1 * KIB,
        description="largest request body, decompressed, whose write key does not stand in the head: it has "
        "to be parsed before it is known who sends it. SDKs send 500 KB at most",
    )
    body_memory: Bytes = Field(
        256 * MIB,
        description="memory for the bodies of all requests together, from arrival to answer; "
        "a request for which there is none left gets 503. An eighth is kept for bodies up to 256 KiB; once "
        "half is in use, one client address may not have more than a quarter",
    )
    body_timeout: Seconds = Field(30, gt=0, description="how long a request body may take to arrive")
    body_grace: Seconds = Field(
        10, gt=0, description="how long it may take at any pace; then on average `GATEWAY_BODY_RATE_MIN`"
    )
    body_rate_min: Bytes = Field(
        512, gt=0, description="bytes a second that must come of it on average; phones on 2G reach 2 KiB"
    )
    request_events_max: int = Field(2_500, ge=1, description="most events in one request")
    request_bytes_max: Bytes = Field(
        16 * MIB,
        ge=1 * KIB,
        description="most bytes of one request's events after batch-level fields were merged into each",
    )
    request_growth_max: Bytes = Field(
        5 * MIB,
        ge=1 * KIB,
        description="most bytes that batch-level fields may add to one request's events in all; 500 events "
        "with a `context` of 10 KB beside them pass",
    )
    event_bytes_max: Bytes = Field(
        800 * KIB,
        ge=1 * KIB,
        description="largest event, batch-level fields included; a larger one is rejected, not its batch",
    )
    event_depth_max: int = Field(
        32, ge=1, le=200, description="deepest nesting of an event; a deeper one is rejected, not its batch"
    )
    answer_timeout: Seconds = Field(
        4.5, gt=0, description="how long a request may wait for its verdict before it gets 503"
    )
    retry_after_max: int = Field(
        30,
        ge=1,
        le=30,
        description="largest `Retry-After` of a 429 or 503, in seconds; the smallest is 1. That of a used-up "
        "quota says when the request would pass, up to 300",
    )
    keep_alive: Seconds = Field(
        75,
        ge=1,
        description="how long an idle connection stays open; longer than the load balancer in front",
    )

    head_bytes_max: Bytes = Field(
        64 * KIB, ge=1 * KIB, description="largest request line and headers together"
    )
    head_timeout: Seconds = Field(
        10,
        gt=0,
        description="how long they may take to arrive, counted from the connection or from their first byte; "
        "then the connection is closed",
    )
    send_timeout: Seconds = Field(
        30, gt=0, description="how long a client may leave its answers unread before it loses the connection"
    )
    connections_max: int = Field(
        16_384,
        ge=1,
        description="most connections; beyond, an address with more than a sixteenth of them loses those "
        "idle longest and those it is slowest to send on, then anybody those idle longest; if none can go, "
        "requests of new ones get 503. Lowered where the system allows fewer open files",
    )
    connections_per_address_max: int | None = Field(
        None,
        ge=1,
        description="most connections of one client address (an IPv6 one counts by its /64), or requests at "
        "once of one behind a trusted proxy; empty: no limit of its own",
    )
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode] = Field(
        (),
        description="networks (CIDR) or addresses of load balancers, separated by commas, whose "
        "`X-Forwarded-For` says who the client is; without them, a load balancer is the one client",
    )

    context_ip: bool = Field(
        True,
        description="whether events without `context.ip` get the client's address; what it is behind a load "
        "balancer, `GATEWAY_TRUSTED_PROXIES` decides",
    )

    queue_events_max: int = Field(
        20_000,
        ge=1,
        description="most events waiting in front of one partition; one source may have no more waiting than "
        "there is room left, so half of it alone",
    )
    queue_bytes_max: Bytes = Field(
        32 * MIB,
        ge=1 * MIB,
        description="most bytes of events waiting in front of one partition, shared alike",
    )
    batch_events_max: int = Field(1_000, ge=1, le=10_000, description="most events in one commit")
    batch_bytes_max: Bytes = Field(
        900 * KIB, ge=QUARANTINE_RECORD_BYTES_MAX, description="most bytes in one commit"
    )
    kafka_transaction_timeout: Seconds = Field(
        30,
        gt=0,
        description="when Kafka ends a takeover by a gateway that went silent amid it",
    )
    start_timeout: Seconds = Field(
        60, ge=0, description="how long to try to reach the log at start before giving up"
    )
    restore_concurrency: int = Field(
        4, ge=1, description="how many partitions replay the log side by side after a start"
    )
    lane_backoff: Seconds = Field(0.2, gt=0, description="first pause of a failed partition; it doubles")
    lane_backoff_max: Seconds = Field(5, gt=0, description="longest pause of a failed partition")
    refence_min: Seconds = Field(
        1, ge=0, description="shortest wait before a partition taken by another gateway is claimed again"
    )
    refence_max: Seconds = Field(5, ge=0, description="longest such wait")
    fenced_again: Seconds = Field(
        60, description="a partition taken twice within this time is left to the other gateway"
    )
    housekeeping_interval: Seconds = Field(
        30, gt=0, description="how often a partition checks its index against the log's start and end"
    )
    drain_timeout: Seconds = Field(
        10, gt=0, description="how long open commits may take to finish when the gateway stops"
    )
    drain_linger: Seconds = Field(
        0.5, ge=0, description="how long it then still answers 503, so that clients hear it"
    )

    logging_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severity that is logged: `debug`, `info`, `warning` or `error`"
    )
    logging_format: Literal["text", "json"] = Field(
        "text", description="`text` for people or `json` for collectors; always on stderr"
    )

    traces: bool = Field(
        False,
        description="send OpenTelemetry traces, by the usual `OTEL_*` variables; needs the extra `otel`",
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

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """The clean stream and its quarantine."""
        return (
            Stream(self.topic, self.partitions),
            Stream(self.quarantine_topic, self.quarantine_partitions),
        )

    @field_validator("fingerprint_ignore", "admin_hosts", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name for part in value.split(",") if (name := part.strip()))
        return value

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _parse_networks(cls, value: object) -> object:
        return parse_networks(value) if isinstance(value, str) else value

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that the settings break."""
        yield from super().contradictions()
        yield from contradictions(self)

    def warnings(self) -> Iterator[str]:
        """Yield one sentence for each thing that only development accepts."""
        if self.is_development and self.identity_secret is None:
            yield "GATEWAY_IDENTITY_SECRET is not set: using the public development secret"
        if self.is_development and self.write_keys_file is None:
            yield "GATEWAY_WRITE_KEYS_FILE is not set: every write key is accepted and is its own source"
        if self.is_development and not self.has_admin_token and not is_loopback(self.admin_host):
            yield "GATEWAY_ADMIN_TOKEN is not set: whoever reaches the admin port may ask it anything"
