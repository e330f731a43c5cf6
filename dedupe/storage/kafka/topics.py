"""
Creates the gateway's topics, and checks topics and brokers at every start and while it runs (rule R8).

Production refuses to start on settings that break the promise, and development warns. A running gateway warns
and goes on serving.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import CreatePartitionsRequest_v0, CreateTopicsRequest_v3
from aiokafka.protocol.api import RequestStruct

from dedupe.model.errors import ConfigurationError, IdentityMismatchError, RetriableError
from dedupe.model.types import Topic
from dedupe.storage.kafka.cluster import (
    UNKNOWN_TOPIC,
    configs_in,
    configs_request,
    error_name,
)
from dedupe.storage.kafka.setting_rules import (
    OFFSETS,
    REMOTE_WAIT,
    REPLICATION_FACTOR_MIN,
    TRANSACTIONS,
    Demands,
    notes_on_broker,
    problems_of,
    tiered_problem,
    transaction_rules,
)
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.notes import PIN, Pin
from dedupe.storage.routing_records import routing_topic_of
from dedupe.storage.setting_problems import Inspection, Level, Problem, tell

TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, NOT_CONTROLLER = 36, 37, 40, 41
TOO_OLD = (
    ". Brokers before Kafka 3.6 do not know message.timestamp.before.max.ms and after.max.ms, and some "
    "services fix some settings: create the topic by hand, as docs/kafka.md says"
)
"""What follows the refusal of a setting."""
LEADER_POLL_S = 0.1
BATCH_HEAD_BYTES = 61
"""What a record batch has besides its records."""

logger = structlog.get_logger(__name__)


class TopicSpec(NamedTuple):
    """A topic that the gateway needs."""

    name: str
    partitions: int
    partitions_setting: str  # the variable that sets `partitions`
    is_routing: bool = False  # its records count for ever; it may have more partitions


def routing_spec(clean: Topic) -> TopicSpec:
    """Return the routing topic of a clean one: a partition for notes, and one for each clean partition."""
    return TopicSpec(
        routing_topic_of(clean.name), clean.partitions + 1, "GATEWAY_PARTITIONS", is_routing=True
    )


async def prepare_topics(
    store: KafkaStore, specs: Sequence[TopicSpec], demands: Demands, *, is_development: bool
) -> Inspection:
    """
    Check all topics and brokers; in development create missing topics, and warn of unsafe settings.

    Returns:
        What was found and is not refused.

    Raises:
        ConfigurationError: final; one line for each problem.
        RetriableError: the cluster did not answer.
    """
    if is_development:
        await create_topics(store, specs, demands, replication_factor=1)
    found = await inspect_topics(store, specs, demands)
    refused = (Level.WRONG,) if is_development else (Level.WRONG, Level.UNSAFE)
    if wrong := [problem.text for problem in found.problems if problem.level in refused]:
        raise ConfigurationError("\n".join(wrong))
    for problem in found.problems:
        tell(problem)
    return found


async def create_topics(
    store: KafkaStore, specs: Sequence[TopicSpec], demands: Demands, *, replication_factor: int
) -> list[str]:
    """
    Create the missing topics, as safe as the replicas allow; existing ones stay as they are.

    Returns:
        Their names.

    Raises:
        ConfigurationError: the cluster refuses one.
        RetriableError: it did not answer, or some brokers do not know the topics yet.
    """
    created = []
    for spec in specs:
        if await store.partitions_of(spec.name):
            continue
        await _create(store, spec, demands, replication_factor)
        created.append(spec.name)
        if await store.partitions_of(spec.name) == 0:  # of another broker, whose metadata are older
            raise RetriableError(f"topic {spec.name} is not known to every broker yet")
    return created


async def add_partitions(store: KafkaStore, topic: str, count: int) -> bool:
    """
    Give a topic so many partitions; return whether it had fewer.

    Raises:
        ConfigurationError: the cluster refuses it.
        RetriableError: it did not answer, or the new partitions have no leaders yet.
    """
    if await store.partitions_of(topic) >= count:
        return False
    timeout_ms = round(store.config.request_timeout_s * 1000)
    request = CreatePartitionsRequest_v0([(topic, (count, None))], timeout_ms, False)
    response = await _send_to_controller(store, request)
    for _, code, message in response.topic_errors:
        if code == NOT_CONTROLLER:
            raise RetriableError(f"topic {topic} gets no partitions: the controller has moved")
        if code not in (0, INVALID_PARTITIONS):  # another command may be faster
            raise ConfigurationError(
                f"topic {topic} gets no more partitions: Kafka error {code} {message or error_name(code)}. "
                f"Whoever may alter it gives it {count}, then this goes on"
            )
    await _wait_for_leaders(store, topic, count)
    store.crashpoint("added")
    return True


async def inspect_topics(store: KafkaStore, specs: Sequence[TopicSpec], demands: Demands) -> Inspection:
    """Check topics and brokers; changes nothing. Raises RetriableError: the cluster did not answer."""
    counts: list[Problem] = []
    problems: list[Problem] = []
    batch_bytes: dict[str, int] = {}
    on_brokers, brokers_wait = await _broker_problems(store, demands)
    for spec in specs:
        partitions = await store.partitions_of(spec.name)
        if partitions != spec.partitions and not (spec.is_routing and partitions > spec.partitions):
            counts.append(await _wrong_count(store, spec, partitions))
        if partitions:
            found, configs = await _topic_problems(store, spec, demands)
            problems += found + tiered_problem(spec.name, configs, brokers_wait=brokers_wait)
            if limit := configs.get("max.message.bytes"):
                batch_bytes[spec.name] = int(limit) - BATCH_HEAD_BYTES
    problems += on_brokers + await _problems_of_kafka_topics(store)
    return Inspection(counts + problems, batch_bytes)


async def _wrong_count(store: KafkaStore, spec: TopicSpec, partitions: int) -> Problem:
    """Return the problem of a topic with another number of partitions than the settings say."""
    if partitions == 0:
        text = (
            f"topic {spec.name} does not exist: create it with {spec.partitions} partitions "
            f"and replication factor {REPLICATION_FACTOR_MIN}, or with `gateway topics create`"
        )
        return Problem(Level.WRONG, spec.name, "partitions", text)
    if spec.is_routing:
        text = (
            f"topic {spec.name} has {partitions} partitions and must have {spec.partitions}, one more than "
            "the clean topic: add them"
        )
        return Problem(Level.WRONG, spec.name, "partitions", text)
    if partitions > spec.partitions and await _is_pinned(store, spec):
        text = (
            f"topic {spec.name} was begun with {spec.partitions} partitions and was given more since, "
            f"{partitions} now: the gateway uses the first {spec.partitions}, and the others must stay empty"
        )
        return Problem(Level.WARNING, spec.name, "partitions", text)
    text = (
        f"topic {spec.name} has {partitions} partitions but {spec.partitions_setting} says "
        f"{spec.partitions}: the number decides where copies of an event meet, so it must not change once "
        "events are stored"
    )
    return Problem(Level.WRONG, spec.name, "partitions", text)


async def _is_pinned(store: KafkaStore, spec: TopicSpec) -> bool:
    """Whether the topic was begun with so many partitions, or fewer."""
    try:
        text = (await store.notes(PIN, spec.name)).get(0)
        return text is not None and Pin.decode(text).partitions <= spec.partitions
    except (ConfigurationError, IdentityMismatchError):  # the pin cannot be read
        return False


async def _create(store: KafkaStore, spec: TopicSpec, demands: Demands, replication_factor: int) -> None:
    configs = list(demands.configs(replication_factor, keeps_all=spec.is_routing).items())
    topics: list[Any] = [(spec.name, spec.partitions, replication_factor, [], configs)]
    timeout_ms = round(store.config.request_timeout_s * 1000)
    response = await _send_to_controller(store, CreateTopicsRequest_v3(topics, timeout_ms, False))
    for _, code, message in response.topic_errors:
        if code == NOT_CONTROLLER:
            raise RetriableError(f"topic {spec.name} cannot be created: the controller has moved")
        if code not in (0, TOPIC_ALREADY_EXISTS):  # another gateway may be faster
            raise ConfigurationError(
                f"topic {spec.name} cannot be created: Kafka error {code} {message}"
                f"{TOO_OLD if code == INVALID_CONFIG else ''}"
            )
    logger.info("topic created", topic=spec.name, partitions=spec.partitions)
    await _wait_for_leaders(store, spec.name, spec.partitions)


async def _send_to_controller(store: KafkaStore, request: RequestStruct) -> Any:
    controller = (await store.cluster.describe()).controller
    if controller is None:
        raise RetriableError("the cluster has no controller yet")
    return await store.cluster.send(controller, request, limit_s=store.config.request_timeout_s)


async def _wait_for_leaders(store: KafkaStore, name: str, partitions: int) -> None:
    """Wait until every partition of a new topic has a leader: a fence needs it."""
    try:
        async with asyncio.timeout(store.config.request_timeout_s):
            while True:
                (topic,) = (await store.cluster.describe(name)).topics
                leaders = [partition["leader"] for partition in topic["partitions"]]
                if len(leaders) == partitions and min(leaders) >= 0:
                    return
                await asyncio.sleep(LEADER_POLL_S)
    except TimeoutError as err:
        raise RetriableError(f"the partitions of topic {name} have no leaders yet") from err


async def _topic_problems(
    store: KafkaStore, spec: TopicSpec, demands: Demands
) -> tuple[list[Problem], Mapping[str, str | None]]:
    """Return the problems of a topic, and its settings."""
    (topic,) = (await store.cluster.describe(spec.name)).topics
    if topic["error_code"] != 0:
        raise RetriableError(f"topic {spec.name} is not known to every broker yet")
    configs = await store.cluster.topic_settings(spec.name)
    problems = _replicas_problem(spec.name, topic)
    rules = demands.topic_rules(keeps_all=spec.is_routing)
    return problems + problems_of(f"topic {spec.name}", spec.name, configs, rules), configs


def _replicas_problem(name: str, topic: Mapping[str, Any]) -> list[Problem]:
    replicas = min(len(partition["replicas"]) for partition in topic["partitions"])
    if replicas >= REPLICATION_FACTOR_MIN:
        return []
    text = f"topic {name}: replication factor is {replicas}, must be at least {REPLICATION_FACTOR_MIN}"
    return [Problem(Level.UNSAFE, name, "replication factor", text)]


async def _problems_of_kafka_topics(store: KafkaStore) -> list[Problem]:
    """Return the problems of Kafka's own topics, of owners and of notes, as far as they exist."""
    problems: list[Problem] = []
    for topic in (await store.cluster.describe(TRANSACTIONS, OFFSETS)).topics:
        name, code = topic["topic"], topic["error_code"]
        if code == UNKNOWN_TOPIC:
            continue  # Kafka creates it at its first use
        if code != 0:
            text = f"topic {name}: the cluster does not show its replicas ({error_name(code)})"
            problems.append(Problem(Level.NOT_SHOWN, name, "replication factor", text))
            continue
        problems += _replicas_problem(name, topic)
        if name == TRANSACTIONS:
            configs = await store.cluster.topic_settings(name)
            problems += problems_of(f"topic {name}", name, configs, transaction_rules())
    return problems


async def _broker_problems(store: KafkaStore, demands: Demands) -> tuple[list[Problem], bool]:
    """Return the problems of all brokers, and whether each waits for tiered records, or may."""
    problems: list[Problem] = []
    waits = True
    for node_id, broker in (await store.cluster.describe()).brokers.items():
        request = configs_request(ConfigResourceType.BROKER, str(node_id))
        configs = configs_in(await store.cluster.send(broker, request))
        whose = f"broker {node_id}"
        problems += problems_of(whose, "", configs, demands.broker_rules()) + notes_on_broker(whose, configs)
        waits = waits and (not configs or REMOTE_WAIT in configs)
    return problems, waits
