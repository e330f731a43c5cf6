"""Which settings contradict each other: one sentence each, with what would mend it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.config.networks import is_loopback
from app.config.units import DAY, KIB, format_duration, format_size
from dedupe.identity import SECRET_BYTES_MAX, SECRET_BYTES_MIN

if TYPE_CHECKING:
    from app.config.settings import Settings

RECORD_MARGIN_BYTES = 4 * KIB
"""
What a record adds to its event at most: id, source, headers (dedupe.types), receivedAt, type, context.ip,
and what of sentAt and the like counts for no limit (app.ingest.event_limits.RETRY_BYTES_FREE).
"""


def contradictions(settings: "Settings") -> Iterator[str]:
    """Yield a sentence for each rule that the settings break."""
    yield from _production_rules(settings)
    yield from _time_rules(settings)
    yield from _size_rules(settings)
    yield from _group_rules(settings)
    if settings.admin_token is not None and settings.admin_token == settings.admin_read_token:
        yield "GATEWAY_ADMIN_READ_TOKEN must differ from GATEWAY_ADMIN_TOKEN: it may change nothing"


def _production_rules(settings: "Settings") -> Iterator[str]:
    if settings.identity_secret is not None:
        size = len(settings.identity_key)
        if not SECRET_BYTES_MIN <= size <= SECRET_BYTES_MAX:
            yield (
                f"GATEWAY_IDENTITY_SECRET must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, "
                f"it has {size}"
            )
    if settings.is_development:
        return
    if settings.identity_secret is None:
        yield (
            "GATEWAY_IDENTITY_SECRET must be set in production: "
            f"{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes of text, kept for as long as the log "
            "(or set GATEWAY_MODE=development to try the gateway out)"
        )
    if not settings.has_admin_token and not is_loopback(settings.admin_host):
        yield (
            f"GATEWAY_ADMIN_TOKEN must be set in production with GATEWAY_ADMIN_HOST={settings.admin_host}: "
            "whoever reaches the admin port could ask it anything"
        )
    if settings.write_keys_file is None:
        yield "GATEWAY_WRITE_KEYS_FILE must be set in production: without it anybody could send events"


def _time_rules(settings: "Settings") -> Iterator[str]:
    if settings.window < DAY:
        yield "GATEWAY_WINDOW must be at least 24h: SDKs retry events of the day before"
    if settings.retention < settings.window + DAY:
        yield (
            f"GATEWAY_RETENTION ({format_duration(settings.retention)}) must be at least GATEWAY_WINDOW "
            f"({format_duration(settings.window)}) and one day: the index is rebuilt from the log"
        )
    if settings.retention < settings.session_lease + DAY:
        yield (
            f"GATEWAY_RETENTION ({format_duration(settings.retention)}) must be at least "
            f"GATEWAY_SESSION_LEASE ({format_duration(settings.session_lease)}) and one day: "
            "what is known of a session is rebuilt from the log"
        )
    if settings.lane_backoff_max < settings.lane_backoff:
        yield "GATEWAY_LANE_BACKOFF_MAX must not be less than GATEWAY_LANE_BACKOFF"
    if settings.refence_max < settings.refence_min:
        yield "GATEWAY_REFENCE_MAX must not be less than GATEWAY_REFENCE_MIN"
    if settings.log != "kafka":
        return
    if settings.answer_timeout >= settings.kafka_request_timeout:
        yield (
            f"GATEWAY_ANSWER_TIMEOUT ({format_duration(settings.answer_timeout)}) must be less than "
            f"GATEWAY_KAFKA_REQUEST_TIMEOUT ({format_duration(settings.kafka_request_timeout)}): "
            "clients are answered before the gateway gives a commit up"
        )
    if settings.kafka_request_timeout >= settings.kafka_transaction_timeout:
        yield (
            f"GATEWAY_KAFKA_REQUEST_TIMEOUT ({format_duration(settings.kafka_request_timeout)}) must be "
            "less than GATEWAY_KAFKA_TRANSACTION_TIMEOUT "
            f"({format_duration(settings.kafka_transaction_timeout)}): "
            "Kafka must not abort a commit that is still tried"
        )


def _size_rules(settings: "Settings") -> Iterator[str]:
    if settings.batch_bytes_max < settings.event_bytes_max + RECORD_MARGIN_BYTES:
        yield (
            f"GATEWAY_BATCH_BYTES_MAX ({format_size(settings.batch_bytes_max)}) must exceed "
            f"GATEWAY_EVENT_BYTES_MAX ({format_size(settings.event_bytes_max)}) by "
            f"{format_size(RECORD_MARGIN_BYTES)}: the largest event must fit into a commit"
        )
    records_bytes_max = settings.request_bytes_max + settings.request_events_max * RECORD_MARGIN_BYTES
    if settings.queue_bytes_max < records_bytes_max:
        yield (
            f"GATEWAY_QUEUE_BYTES_MAX ({format_size(settings.queue_bytes_max)}) must be at least "
            f"{format_size(records_bytes_max)}: the largest request must fit into a queue"
        )
    if settings.queue_events_max < settings.request_events_max:
        yield (
            "GATEWAY_QUEUE_EVENTS_MAX must not be less than GATEWAY_REQUEST_EVENTS_MAX: "
            "the largest request must fit into a queue"
        )
    if settings.request_bytes_max < settings.body_bytes_max:
        yield "GATEWAY_REQUEST_BYTES_MAX must not be less than GATEWAY_BODY_BYTES_MAX"
    if settings.body_memory < 2 * (settings.body_bytes_max + settings.body_compressed_bytes_max):
        yield (
            "GATEWAY_BODY_MEMORY must not be less than twice GATEWAY_BODY_BYTES_MAX and "
            "GATEWAY_BODY_COMPRESSED_BYTES_MAX together: the largest body must fit into the half that "
            "one address may have"
        )
    if settings.body_memory < 2 * settings.request_bytes_max:
        yield "GATEWAY_BODY_MEMORY must not be less than twice GATEWAY_REQUEST_BYTES_MAX"
    if "messageId" in settings.fingerprint_ignore:
        yield "GATEWAY_FINGERPRINT_IGNORE must not name messageId: it is the event's identity"


def _group_rules(settings: "Settings") -> Iterator[str]:
    if settings.peer_port is not None and settings.log != "kafka":
        yield ("GATEWAY_PEER_PORT needs GATEWAY_LOG=kafka: the embedded log is for one process alone")
    tls = (settings.peer_tls_cert_file, settings.peer_tls_key_file, settings.peer_tls_ca_file)
    if any(tls) and not all(tls):
        yield (
            "GATEWAY_PEER_TLS_CERT_FILE, GATEWAY_PEER_TLS_KEY_FILE and GATEWAY_PEER_TLS_CA_FILE must be set "
            "together: workers show their certificates to each other"
        )
