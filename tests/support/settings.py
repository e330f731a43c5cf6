"""Settings for tests, which name them as operators do."""

from typing import Any

from app.settings.model import DEVELOPMENT_SECRET, Settings
from app.settings.section import PREFIX, settings_of
from dedupe.login.login import Login
from dedupe.login.settings import LoginSettings
from dedupe.model.identity import Identity
from dedupe.partition.queue import QueueLimits
from dedupe.storage.kafka.config import CLIENT_ID, KafkaConfig
from dedupe.storage.kafka.routing_topic import RoutingKey
from dedupe.storage.routing_records import mac_key_of


def variable_of(name: str) -> str:
    """Return the variable of a setting that is named in lower case and without GATEWAY_."""
    return f"{PREFIX}{name.upper()}"


VARIABLES = tuple(setting.variable for setting in settings_of(Settings))


BATCH_BYTES_MAX = 900 * 1024
QUEUE_LIMITS = QueueLimits(20_000, 32 * 1024**2, BATCH_BYTES_MAX)
"""Those of the default settings."""


def kafka_config(
    bootstrap_servers: str,
    *,
    request_timeout_s: float = 8,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    client_id: str = CLIENT_ID,
    **login: Any,
) -> KafkaConfig:
    """Return how the default settings reach a cluster, and log in to it."""
    return KafkaConfig(
        bootstrap_servers,
        request_timeout_s,
        client_id,
        Login(LoginSettings(**login), bootstrap_servers=bootstrap_servers),
        batch_bytes_max,
    )


def routing_key(topic: str) -> RoutingKey:
    """Return how the routing topic of a topic is proved, as in development."""
    return RoutingKey(topic, mac_key_of(Identity(DEVELOPMENT_SECRET.encode())))


def make_settings(**values: object) -> Settings:
    """Return settings, whatever contradicts itself; each is named in lower case and without GATEWAY_."""
    variables = {variable_of(name): value for name, value in values.items()}
    assert variables.keys() <= set(VARIABLES), variables.keys() - set(VARIABLES)
    return Settings.model_validate(variables)
