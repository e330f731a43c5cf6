"""
What the gateway demands of its topics and brokers, checked at every start (rule R8).

A topic with compaction, short retention or another partition count would silently break the
promise much later; so production refuses to start on it, and development warns.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from dedupe.adapters.kafka_log import KafkaStore
from dedupe.adapters.kafka_producer import bounded
from dedupe.errors import ConfigurationError, RetriableError

TIMESTAMP_AFTER_MAX_MS = 3_600_000
"""A record further in the future than this, from a wild clock, would move every window past its ids."""
TOPIC_ALREADY_EXISTS = 36  # another gateway was faster
LEADER_POLL_S = 0.1

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as the gateway needs it."""

    name: str
    partitions: int
    retention_ms: int  # at least; window + 1 day
    batch_bytes_max: int
    transaction_timeout_ms: int
    is_development: bool

    def rules(self) -> dict[str, tuple[Callable[[str], bool], str]]:
        """Return per topic setting: what holds for a good value, and what to say about another."""
        return {
            "cleanup.policy": (
                lambda value: value == "delete",
                "must be delete: compaction would remove records that the index is rebuilt from",
            ),
            "retention.ms": (
                lambda value: int(value) == -1 or int(value) >= self.retention_ms,
                f"must be at least {self.retention_ms} (window + 1 day): deleted ids are forgotten",
            ),
            "retention.bytes": (
                lambda value: int(value) == -1,
                "must be -1: a size limit deletes records inside the window",
            ),
            "message.timestamp.type": (
                lambda value: value == "CreateTime",
                "must be CreateTime: the window is measured on the gateway's timestamps",
            ),
            "message.timestamp.after.max.ms": (
                lambda value: int(value) <= TIMESTAMP_AFTER_MAX_MS,
                f"must be at most {TIMESTAMP_AFTER_MAX_MS}: one wild clock would end every window",
            ),
            "max.message.bytes": (
                lambda value: int(value) >= self.batch_bytes_max,
                f"must be at least {self.batch_bytes_max}, the gateway's record batch limit",
            ),
            "unclean.leader.election.enable": (
                lambda value: value == "false",
                "must be false: an unclean election loses acknowledged events",
            ),
            "min.insync.replicas": (
                lambda value: int(value) >= 2,
                "must be at least 2: with 1, losing a single broker can lose acknowledged events",
            ),
        }

    def configs(self) -> dict[str, str]:
        """Return the settings of a topic created for development."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention_ms),
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str(TIMESTAMP_AFTER_MAX_MS),
            "unclean.leader.election.enable": "false",
        }


REPLICATION_FACTOR_MIN = 3


async def prepare_topic(store: KafkaStore, spec: TopicSpec) -> None:
    """
    Check one topic, in development create it if it is missing.

    Raises:
        ConfigurationError: final; one line for each thing that is wrong.
        RetriableError: the cluster did not answer.
    """
    partitions = await store.partitions_of(spec.name)
    if partitions == 0 and spec.is_development:
        await _create(store, spec)
        partitions = await store.partitions_of(spec.name)
    if partitions == 0:
        raise ConfigurationError(
            f"topic {spec.name} does not exist: create it with {spec.partitions} partitions "
            f"and replication factor {REPLICATION_FACTOR_MIN}"
        )
    if partitions != spec.partitions:
        raise ConfigurationError(
            f"topic {spec.name} has {partitions} partitions but GATEWAY_PARTITIONS says {spec.partitions}: "
            "the count is fixed when a topic is created, since it decides where copies of an event meet"
        )
    problems = await _problems(store, spec)
    if problems and not spec.is_development:
        raise ConfigurationError("\n".join(problems))
    for problem in problems:
        log.warning("unsafe for production", problem=problem)


async def _create(store: KafkaStore, spec: TopicSpec) -> None:
    new = NewTopic(spec.name, spec.partitions, replication_factor=1, topic_configs=spec.configs())
    response = await _answer(store, store.admin.create_topics([new]))
    for _, code, *message in response.topic_errors:
        if code not in (0, TOPIC_ALREADY_EXISTS):
            raise ConfigurationError(f"topic {spec.name} cannot be created: Kafka error {code} {message}")
    log.info("topic created", topic=spec.name, partitions=spec.partitions)
    await _wait_for_leaders(store, spec)


async def _wait_for_leaders(store: KafkaStore, spec: TopicSpec) -> None:
    """A new topic is known before its partitions have leaders; until then nothing can be fenced."""
    async with asyncio.timeout(store.config.request_timeout_s):
        while True:
            topics = await _answer(store, store.admin.describe_topics([spec.name]))
            partitions = topics[0]["partitions"]
            if len(partitions) == spec.partitions and all(found["leader"] >= 0 for found in partitions):
                return
            await asyncio.sleep(LEADER_POLL_S)


async def _problems(store: KafkaStore, spec: TopicSpec) -> list[str]:
    """Return one sentence for each setting of topic and brokers that breaks a rule."""
    topics = await _answer(store, store.admin.describe_topics([spec.name]))
    replication_factor = min(len(partition["replicas"]) for partition in topics[0]["partitions"])
    configs = await _configs(store, ConfigResource(ConfigResourceType.TOPIC, spec.name))
    problems = []
    if replication_factor < REPLICATION_FACTOR_MIN:
        problems.append(
            f"topic {spec.name}: replication factor is {replication_factor}, "
            f"must be at least {REPLICATION_FACTOR_MIN}"
        )
    for name, (is_good, demand) in spec.rules().items():
        value = configs.get(name)
        if value is not None and not is_good(value):
            problems.append(f"topic {spec.name}: {name} is {value}, {demand}")
    return problems + await _broker_problems(store, spec)


async def _broker_problems(store: KafkaStore, spec: TopicSpec) -> list[str]:
    problems = []
    cluster = await _answer(store, store.admin.describe_cluster())
    for broker in cluster["brokers"]:
        node_id = broker["node_id"]
        configs = await _configs(store, ConfigResource(ConfigResourceType.BROKER, str(node_id)))
        verifies = configs.get("transaction.partition.verification.enable")
        if verifies == "false":
            problems.append(
                f"broker {node_id}: transaction.partition.verification.enable is false, must be true: "
                "without it a late write can enter a later transaction"
            )
        timeout_max = configs.get("transaction.max.timeout.ms")
        if timeout_max is not None and int(timeout_max) < spec.transaction_timeout_ms:
            problems.append(
                f"broker {node_id}: transaction.max.timeout.ms is {timeout_max}, "
                f"must be at least {spec.transaction_timeout_ms}"
            )
    return problems


async def _configs(store: KafkaStore, resource: ConfigResource) -> dict[str, str | None]:
    """Return the effective settings of one topic or broker; none if the cluster does not show them."""
    responses = await _answer(store, store.admin.describe_configs([resource]))
    configs: dict[str, str | None] = {}
    for response in responses:
        for code, message, _, name, entries in response.resources:
            if code != 0:
                raise ConfigurationError(f"settings of {name} cannot be read: Kafka error {code} {message}")
            configs.update({entry[0]: entry[1] for entry in entries})
    return configs


async def _answer(store: KafkaStore, request: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await bounded(request, store.config.request_timeout_s)
    except (KafkaError, OSError) as err:
        raise RetriableError(f"the Kafka cluster did not answer: {err!r}") from err
