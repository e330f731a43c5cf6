"""Real logs and indexes behind the core's protocols. Adapters import the core, never each other."""

from dedupe.adapters.kafka_config import KafkaConfig
from dedupe.adapters.kafka_log import KafkaStore
from dedupe.adapters.kafka_rights import missing_rights
from dedupe.adapters.kafka_topics import (
    Demands,
    Inspection,
    TopicSpec,
    create_topics,
    inspect_topics,
    prepare_topics,
)
from dedupe.adapters.rocks_index import RocksStore
from dedupe.adapters.sqlite_log import SqliteStore

__all__ = [
    "Demands",
    "Inspection",
    "KafkaConfig",
    "KafkaStore",
    "RocksStore",
    "SqliteStore",
    "TopicSpec",
    "create_topics",
    "inspect_topics",
    "missing_rights",
    "prepare_topics",
]
