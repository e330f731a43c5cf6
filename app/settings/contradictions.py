"""Contradictions between settings of different sections: one sentence each, with its remedy."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.settings.networks import is_loopback
from app.settings.units import DAY, format_duration
from dedupe.model.identity import SECRET_BYTES_MAX, SECRET_BYTES_MIN

if TYPE_CHECKING:
    from app.settings.model import Settings


def contradictions(settings: "Settings") -> Iterator[str]:
    """Yield a sentence for each rule that the settings break."""
    yield from _production_rules(settings)
    yield from _time_rules(settings)
    yield from _group_rules(settings)
    admin = settings.admin
    if admin.token is not None and admin.token == admin.read_token:
        yield "GATEWAY_ADMIN_READ_TOKEN must differ from GATEWAY_ADMIN_TOKEN: it may change nothing"
    if "messageId" in settings.gateway.fingerprint_ignore:
        yield "GATEWAY_FINGERPRINT_IGNORE must not name messageId: it is the event's identity"


def _production_rules(settings: "Settings") -> Iterator[str]:
    gateway, admin = settings.gateway, settings.admin
    if gateway.identity_secret is not None:
        size = len(gateway.identity_key)
        if not SECRET_BYTES_MIN <= size <= SECRET_BYTES_MAX:
            yield (
                f"GATEWAY_IDENTITY_SECRET must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, "
                f"it has {size}"
            )
    if gateway.is_development:
        return
    if gateway.identity_secret is None:
        yield (
            "GATEWAY_IDENTITY_SECRET must be set in production: "
            f"{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes of text, kept for as long as the log "
            "(or set GATEWAY_MODE=development to try the gateway out)"
        )
    if not admin.has_token and not is_loopback(admin.host):
        yield (
            f"GATEWAY_ADMIN_TOKEN must be set in production with GATEWAY_ADMIN_HOST={admin.host}: "
            "every client that reaches the admin port could ask it anything"
        )
    if gateway.write_keys_file is None:
        yield "GATEWAY_WRITE_KEYS_FILE must be set in production: without it every client could send events"


def _time_rules(settings: "Settings") -> Iterator[str]:
    index, kafka = settings.index, settings.log.kafka
    if index.window < DAY:
        yield "GATEWAY_WINDOW must be at least 24h: SDKs retry events of the day before"
    if index.retention < index.window + DAY:
        yield (
            f"GATEWAY_RETENTION ({format_duration(index.retention)}) must be at least GATEWAY_WINDOW "
            f"({format_duration(index.window)}) and one day: the index is rebuilt from the log"
        )
    if index.retention < index.session_lease + DAY:
        yield (
            f"GATEWAY_RETENTION ({format_duration(index.retention)}) must be at least "
            f"GATEWAY_SESSION_LEASE ({format_duration(index.session_lease)}) and one day: "
            "the state of sessions is rebuilt from the log"
        )
    if settings.log.kind == "kafka" and settings.limits.answer_timeout >= kafka.request_timeout:
        yield (
            f"GATEWAY_ANSWER_TIMEOUT ({format_duration(settings.limits.answer_timeout)}) must be less than "
            f"GATEWAY_KAFKA_REQUEST_TIMEOUT ({format_duration(kafka.request_timeout)}): "
            "clients are answered before the gateway gives a commit up"
        )


def _group_rules(settings: "Settings") -> Iterator[str]:
    group = settings.group
    if group.peer_listen is not None and settings.log.kind != "kafka":
        yield "GATEWAY_PEER_LISTEN needs GATEWAY_LOG=kafka: the embedded log is for one process alone"
    tls = (group.peer_tls_cert_file, group.peer_tls_key_file, group.peer_tls_ca_file)
    if any(tls) and not all(tls):
        yield (
            "GATEWAY_PEER_TLS_CERT_FILE, GATEWAY_PEER_TLS_KEY_FILE and GATEWAY_PEER_TLS_CA_FILE must be set "
            "together: workers show their certificates to each other"
        )
