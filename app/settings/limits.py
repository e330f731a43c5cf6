"""The limits of the gateway: sizes, times and counts that an operator sets, and derived ones."""

from collections.abc import Iterator

from pydantic import Field

from app.settings.section import Section
from app.settings.units import GIB, KIB, MIB, Bytes, Seconds, format_size

RECORD_MARGIN_BYTES = 4 * KIB
"""
The maximum that a record adds to its event: id, source, headers (dedupe.model.types), receivedAt, type,
context.ip, and the bytes of retried fields that no limit counts (app.ingest.event_limits).
"""

BATCH_ROOM_BYTES = 100 * KIB
"""
The limit of a commit is that of an event and this; with the defaults 900 KiB, below Kafka's default of 1 MiB
for a batch. It exceeds RECORD_MARGIN_BYTES.
"""

COMMIT_BYTES_MIN = 256 * KIB
"""The least limit of a commit: the record of a piece fits, see dedupe.model.quarantine."""

QUARANTINE_ROOM_BYTES = 8 * KIB
"""What a quarantine record may have besides the event: RECORD_MARGIN_BYTES, and the head of its value."""

QUEUE_EVENTS_MAX = 40_000
"""A queue has room for 40 commits, or two of the largest requests, which sources share."""

EVENT_SPARE_BYTES = 512
"""What a record adds to its event on average, in a request of very many events."""


class LimitSettings(Section):
    """Limits: how much is taken at once, and how long it may take."""

    body_bytes_max: Bytes = Field(
        8 * MIB,
        ge=1 * KIB,
        description="Largest request body, decompressed. As sent, a compressed one may have half of it; its "
        "events may have twice as much once batch-level fields are merged into each.",
    )
    body_memory: Bytes = Field(
        256 * MIB,
        description="Memory for the bodies of all requests together, from arrival to answer; a request for "
        "which there is none left gets 503. An eighth is kept for bodies up to 256 KiB; once half is in use, "
        "one client address may not have more than a quarter.",
    )
    request_events_max: int = Field(
        20_000,
        ge=1,
        le=20_000,
        description="Most events of one request that are decided; those beyond are quarantined.",
    )
    event_bytes_max: Bytes = Field(
        800 * KIB,
        ge=1 * KIB,
        description="Largest event, batch-level fields included; a larger one is rejected, not its batch. "
        f"One commit has at most {BATCH_ROOM_BYTES // KIB} KiB more, or "
        f"{COMMIT_BYTES_MIN // KIB} KiB if that is more.",
    )
    answer_timeout: Seconds = Field(
        4.5, gt=0, description="How long a request may wait for its verdict before it gets 503."
    )
    keep_alive: Seconds = Field(
        620,
        ge=1,
        description="How long an idle connection stays open; longer than that of the load balancer in front, "
        "which is 600 s for Google Cloud's. Where room is needed idle ones are closed earlier.",
    )
    connections_max: int = Field(
        16_384,
        ge=1,
        description="Most connections. With more, an address that has over a sixteenth of them loses those "
        "that are idle longest and those it is slowest to send on, then every address those that are idle "
        "longest; if none can go, requests of new ones get 503. Behind a trusted proxy, an address may have "
        "a sixteenth as many requests at the same time, as soon as all together have more than half as many. "
        "Lowered where the system allows fewer open files.",
    )
    queue_bytes_max: Bytes = Field(
        32 * MIB,
        ge=1 * MIB,
        description="Most bytes of events that wait for one partition; sources share them alike. At most "
        f"{QUEUE_EVENTS_MAX:,} events wait.",
    )
    disk_free_min: Bytes = Field(
        1 * GIB, description="Free disk space under the data folder below which requests get 503."
    )

    @property
    def body_compressed_bytes_max(self) -> int:
        """Largest body as sent, if compressed."""
        return self.body_bytes_max // 2

    @property
    def request_bytes_max(self) -> int:
        """The limit of one request's events with batch-level fields."""
        return 2 * self.body_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        """The limit of one commit, in which the largest record fits."""
        return max(self.event_bytes_max + BATCH_ROOM_BYTES, COMMIT_BYTES_MIN)

    @property
    def quarantine_bytes_max(self) -> int:
        """The limit of one quarantine record's content; a longer one is stored in pieces."""
        return self.batch_bytes_max - QUARANTINE_ROOM_BYTES

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that these settings break."""
        records_bytes_max = self.request_bytes_max + self.request_events_max * EVENT_SPARE_BYTES
        if self.queue_bytes_max < records_bytes_max:
            yield (
                f"GATEWAY_QUEUE_BYTES_MAX ({format_size(self.queue_bytes_max)}) must be at least "
                f"{format_size(records_bytes_max)}: the largest request must fit into a queue"
            )
        if self.body_memory < 2 * self.request_bytes_max:
            yield (
                f"GATEWAY_BODY_MEMORY ({format_size(self.body_memory)}) must be at least four times "
                f"GATEWAY_BODY_BYTES_MAX ({format_size(self.body_bytes_max)}): the largest request must fit "
                "into the half that one address may have"
            )
